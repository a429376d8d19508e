#include "kv/sequence_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <set>

#include "model/presets.h"

namespace lapidary {
namespace {

ModelPlan PresetPlan(const std::string& name) {
  return MakeModelPlan(ParseModelConfig(*PresetConfig(name), name).value()).value();
}

// Tokens that the row at position `length` may see in a group with this window (0: all).
int32_t FirstVisible(int32_t length, int window) {
  return window == 0 ? 0 : std::max(0, length - window + 1);
}

class SequencePagesProperty : public testing::TestWithParam<std::array<int, 2>> {};

constexpr int32_t kMaxDraftRows = 9;

// Random reserves, partial commits, long chunks and releases of many sequences over one small pool,
// against the definition: after every step each block in reach of the next row, or reserved ahead
// of it, has a page that no other such block of any sequence has, and nothing is lost. (Blocks
// behind the window may be overwritten already.)
TEST_P(SequencePagesProperty, EveryTokenInReachHasAPageOfItsOwn) {
  const ModelPlan plan = PresetPlan("tiny-e");  // window 24
  const KvLayout layout = MakeKvLayout(plan, KvFormat::kF32, GetParam());
  constexpr int kNumPages = 120;
  PagePool pool(kNumPages);
  std::list<SequencePages> sequences;
  std::mt19937 random(7);
  int num_refused = 0, num_long_chunks = 0;

  const auto check = [&] {
    std::set<PageIndex> live;              // of blocks that will be read or written
    std::map<PageIndex, int> occurrences;  // in all tables
    for (const SequencePages& sequence : sequences) {
      for (int group = 0; group < kNumKvGroups; ++group) {
        const int window = plan.kv_groups[group].window;
        const int tokens = layout.tokens_per_page[group];
        const PageTable& table = sequence.table(group);
        for (const PageIndex page : table.pages) {
          if (page != kScratchPage) ++occurrences[page];
        }
        const int32_t first_visible = FirstVisible(sequence.length(), window);
        for (int32_t token = first_visible; token < sequence.length(); ++token) {
          ASSERT_TRUE(table.Contains(token / tokens)) << "token " << token;
          ASSERT_NE(table.PageOf(token / tokens), kScratchPage) << "token " << token;
        }
        std::set<PageIndex> held;
        for (int32_t block = table.first_block; block < table.end_block(); ++block) {
          const PageIndex page = table.PageOf(block);
          if (page == kScratchPage) continue;
          held.insert(page);
          if ((block + 1) * tokens <= first_visible) continue;
          ASSERT_TRUE(live.insert(page).second) << "page " << page << " has two owners";
        }
        // No more than the window, the slack and the rows reserved ahead fill, and a page cut at
        // either end.
        const int32_t kept =
            sequence.length() - std::max(0, first_visible - (window == 0 ? 0 : kMaxDraftRows));
        const int32_t ahead = std::max(0, table.end_block() * tokens - sequence.length());
        ASSERT_LE(static_cast<int>(held.size()), (kept + ahead + tokens - 1) / tokens + 1);
      }
    }
    for (const auto& [page, count] : occurrences)
      ASSERT_EQ(pool.num_sequences(page), count) << page;
    ASSERT_EQ(static_cast<int>(occurrences.size()) + pool.num_free(), kNumPages - 1)
        << "pages leaked";
  };

  for (int step = 0; step < 6000; ++step) {
    if (sequences.empty() || (sequences.size() < 8 && random() % 16 == 0)) {
      sequences.emplace_back(plan, layout, pool, kMaxDraftRows);
    }
    auto it = sequences.begin();
    std::advance(it, random() % sequences.size());
    SequencePages& sequence = *it;
    switch (random() % 12) {
      case 0:
        sequence.Release();
        EXPECT_EQ(sequence.length(), 0);
        break;
      case 1:
        sequences.erase(it);  // the destructor gives everything back
        break;
      case 2: {
        SequencePages moved(std::move(sequence));
        EXPECT_EQ(sequence.length(), 0);
        sequences.push_back(std::move(moved));
        break;
      }
      default: {
        const bool is_chunk = random() % 4 == 0;  // a prompt chunk, far longer than the window
        const int32_t rows = is_chunk ? 1 + random() % 150 : 1 + random() % kMaxDraftRows;
        const int needed = sequence.PagesNeeded(rows);
        const int free_before = pool.num_free();
        const bool is_reserved = sequence.Reserve(rows);
        ASSERT_EQ(is_reserved, needed <= free_before);
        ASSERT_EQ(free_before - pool.num_free(), is_reserved ? needed : 0);
        if (!is_reserved) {
          ++num_refused;
          sequence.Release();  // preempted
          break;
        }
        ASSERT_EQ(sequence.PagesNeeded(rows), 0) << "reserving again must take nothing";
        // Rows of drafts may be refused; those of a chunk never are.
        sequence.Commit(is_chunk ? rows : random() % (rows + 1));
        num_long_chunks += rows > 100;
        break;
      }
    }
    ASSERT_NO_FATAL_FAILURE(check()) << "step " << step;
  }
  EXPECT_GT(num_refused, 10);
  EXPECT_GT(num_long_chunks, 10);
  sequences.clear();
  EXPECT_EQ(pool.num_free(), kNumPages - 1);
}

INSTANTIATE_TEST_SUITE_P(TokensPerPage, SequencePagesProperty,
                         testing::Values(std::array<int, 2>{16, 64}, std::array<int, 2>{1, 7},
                                         std::array<int, 2>{5, 3}, std::array<int, 2>{24, 16},
                                         std::array<int, 2>{25, 8}, std::array<int, 2>{64, 64}));

TEST(SequencePages, SlidingPagesAreBoundedByTheWindowHoweverLongTheChunk) {
  const ModelPlan plan = PresetPlan("31b");
  const KvLayout layout = MakeKvLayout(plan, KvFormat::kBF16);
  PagePool pool(1000);
  SequencePages sequence(plan, layout, pool);
  const int window_pages = 1024 / layout.tokens_per_page[kSlidingGroup] + 1;
  for (const int32_t chunk : {8192, 1, 8192, 100, 5, 8192}) {
    const int32_t length = sequence.length() + chunk;
    const int full_pages =
        (length + layout.tokens_per_page[kFullGroup] - 1) / layout.tokens_per_page[kFullGroup];
    ASSERT_TRUE(sequence.Reserve(chunk));
    EXPECT_LE(999 - pool.num_free(), full_pages + window_pages + 1);
    sequence.Commit(chunk);
    EXPECT_LE(999 - pool.num_free(), full_pages + window_pages);
  }
}

TEST(SequencePages, DecodingReturnsEachSlidingPageAsItLeavesTheWindow) {
  const ModelPlan plan = PresetPlan("tiny-e");  // window 24
  const KvLayout layout = MakeKvLayout(plan, KvFormat::kF32, {8, 64});
  PagePool pool(200);
  SequencePages sequence(plan, layout, pool);
  for (int32_t position = 0; position < 500; ++position) {
    ASSERT_TRUE(sequence.Reserve(1));
    sequence.Commit(1);
    const int32_t first_block = std::max(0, position + 1 - 24 + 1) / 8;
    EXPECT_EQ(sequence.table(kSlidingGroup).first_block, first_block);
    EXPECT_EQ(sequence.table(kSlidingGroup).end_block(), position / 8 + 1);
    EXPECT_EQ(sequence.table(kFullGroup).first_block, 0);
    EXPECT_EQ(sequence.table(kFullGroup).end_block(), position / 64 + 1);
  }
}

// The pages of a sequence as far as one of this length needs them.
PageTables TablesFor(const ModelPlan& plan, const KvLayout& layout, const SequencePages& sequence,
                     int32_t length) {
  PageTables tables;
  for (int group = 0; group < kNumKvGroups; ++group) {
    const int tokens = layout.tokens_per_page[group];
    tables[group].first_block = FirstBlockInReach(plan, layout, group, length);
    for (int32_t block = tables[group].first_block; block * tokens < length; ++block) {
      tables[group].pages.push_back(sequence.table(group).PageOf(block));
    }
  }
  return tables;
}

// A sequence resumed with the pages of another: full blocks shared, the cut one copied, and neither
// side's later rows touch what the other still reads.
TEST(SequencePages, ResumingSharesFullBlocksAndCopiesTheCutOne) {
  const ModelPlan plan = PresetPlan("tiny-e");  // window 24
  const KvLayout layout = MakeKvLayout(plan, KvFormat::kF32, {4, 8});
  for (int32_t length = 1; length <= 60; ++length) {
    PagePool pool(400);
    {
      SequencePages first(plan, layout, pool);
      ASSERT_TRUE(first.Reserve(length));
      first.Commit(length);
      const PageTables tables = TablesFor(plan, layout, first, length);
      SequencePages second(plan, layout, pool);
      std::vector<PageCopy> copies;
      const int free_before = pool.num_free();
      ASSERT_TRUE(second.Resume(length, tables, copies));
      EXPECT_EQ(free_before - pool.num_free(), second.PagesToResume(length));
      EXPECT_EQ(static_cast<int>(copies.size()), (length % 4 != 0) + (length % 8 != 0));
      for (int step = 0; step < 40; ++step) {
        for (SequencePages* sequence : {&first, &second}) {
          ASSERT_TRUE(sequence->Reserve(1));
          for (int group = 0; group < kNumKvGroups; ++group) {
            const PageTable& table = sequence->table(group);
            const int32_t block = sequence->length() / layout.tokens_per_page[group];
            const PageTable& other = (sequence == &first ? second : first).table(group);
            EXPECT_EQ(std::count(other.pages.begin(), other.pages.end(), table.PageOf(block)), 0)
                << "the page being written is another's";
          }
          sequence->Commit(1);
        }
      }
    }
    EXPECT_EQ(pool.num_free(), 399) << length;
  }
}

class LeavingPages : public testing::Test {
 protected:
  // A sequence of 100 tokens whose sliding pages are kept, if they are complete.
  void SetUp() override {
    ASSERT_TRUE(sequence_.Reserve(100));
    sequence_.Commit(100);
    const PageTable& table = sequence_.table(kSlidingGroup);
    for (int32_t block = table.first_block; 4 * (block + 1) <= 100; ++block) {
      pool_.Keep(table.PageOf(block));
    }
  }
  SequencePages::MakeRoom Room(int num_pages) {
    return [this, num_pages](EvictionKey key) mutable {
      keys_.push_back(key);
      return num_pages-- > 0 && pool_.num_free() > 0;
    };
  }

  const ModelPlan plan_ = PresetPlan("tiny-e");  // window 24
  const KvLayout layout_ = MakeKvLayout(plan_, KvFormat::kF32, {4, 8});
  PagePool pool_{300};
  SequencePages sequence_{plan_, layout_, pool_, /*slack=*/0};
  std::vector<EvictionKey> keys_;
  std::vector<PageIndex> forgotten_;
  const std::function<void(PageIndex)> forget_ = [this](PageIndex page) {
    forgotten_.push_back(page);
    pool_.Drop(page);
  };
};

TEST_F(LeavingPages, GoToTheCacheWhileThereIsRoom) {
  const PageIndex leaving = sequence_.table(kSlidingGroup).PageOf(19);
  ASSERT_EQ(sequence_.table(kSlidingGroup).first_block, 19);  // 76 to 79; the row at 100 sees 77
  ASSERT_TRUE(sequence_.Reserve(4));  // Block 25: 100 to 103. The row at 104 sees 81.
  EXPECT_EQ(sequence_.table(kSlidingGroup).PageOf(25), leaving);
  EXPECT_TRUE(pool_.is_overwritten(leaving));
  const int num_free = pool_.num_free();
  sequence_.KeepLeaving(Room(1), forget_);
  EXPECT_EQ(num_free - pool_.num_free(), 1);
  EXPECT_NE(sequence_.table(kSlidingGroup).PageOf(25), leaving);
  EXPECT_TRUE(forgotten_.empty());
  EXPECT_FALSE(pool_.is_overwritten(leaving));
  sequence_.Commit(4);
  EXPECT_EQ(pool_.num_reclaimable(), 1);
  EXPECT_EQ(pool_.FirstToGo(), leaving);
}

TEST_F(LeavingPages, AreTakenOverByNewRowsWithoutRoom) {
  const PageIndex leaving = sequence_.table(kSlidingGroup).PageOf(19);
  ASSERT_TRUE(sequence_.Reserve(4));
  sequence_.KeepLeaving(Room(0), forget_);
  EXPECT_EQ(sequence_.table(kSlidingGroup).PageOf(25), leaving);
  EXPECT_EQ(forgotten_, std::vector<PageIndex>{leaving});
  EXPECT_FALSE(pool_.is_overwritten(leaving));
  sequence_.Commit(4);
  EXPECT_EQ(pool_.num_reclaimable(), 0);
}

TEST_F(LeavingPages, RowsOfALongChunkThatWillHaveLeftGetPagesFromTheLastBackwardAsFarAsRoomGoes) {
  ASSERT_TRUE(sequence_.Reserve(200));
  // The row at 300 sees 277: blocks 25 to 68 pass.
  int num_passing = 0;
  for (int32_t block = 25; block < 69; ++block) {
    num_passing += sequence_.table(kSlidingGroup).PageOf(block) == kScratchPage;
  }
  EXPECT_EQ(num_passing, 44);
  // Six pages that left were taken over: those come first.
  sequence_.KeepLeaving(Room(16), forget_);
  for (int32_t block = 25; block < 69; ++block) {
    EXPECT_EQ(sequence_.table(kSlidingGroup).PageOf(block) != kScratchPage, block >= 59) << block;
  }
  EXPECT_TRUE(forgotten_.empty());
  sequence_.Commit(200);
  EXPECT_EQ(sequence_.table(kSlidingGroup).first_block, 69);
}

TEST_F(LeavingPages, PagesNearAPromptsEndAreWorthMore) {
  sequence_.set_end_zone(200, 240);
  ASSERT_TRUE(sequence_.Reserve(200));
  sequence_.KeepLeaving(Room(1000), forget_);
  // In order: six pages taken over, then blocks 68 down to 25.
  ASSERT_EQ(keys_.size(), 6u + 44u);
  const EvictionKey ends = pool_.KeyNow(PageWorth::kEnd) / 2;
  for (int32_t block = 25; block < 69; ++block) {
    EXPECT_EQ(keys_[6 + 68 - block] > ends, block >= 50 && block < 60) << block;
  }
  sequence_.Commit(200);
}

TEST(SequencePages, RefusingTakesNothing) {
  const ModelPlan plan = PresetPlan("tiny-e");
  const KvLayout layout = MakeKvLayout(plan, KvFormat::kF32, {8, 8});
  PagePool pool(4);
  SequencePages sequence(plan, layout, pool);
  EXPECT_EQ(sequence.PagesNeeded(16), 4);
  EXPECT_FALSE(sequence.Reserve(16));
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_TRUE(sequence.Reserve(8));
  EXPECT_EQ(pool.num_free(), 1);
}

}  // namespace
}  // namespace lapidary
