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

TEST(PagePool, HandsOutEveryPageButScratchOnceAndTakesThemBack) {
  PagePool pool(6);
  EXPECT_EQ(pool.num_free(), 5);
  std::set<PageIndex> pages;
  for (int idx = 0; idx < 5; ++idx) {
    const PageIndex page = pool.Allocate();
    EXPECT_TRUE(page > kScratchPage && page < 6);
    EXPECT_TRUE(pages.insert(page).second);
  }
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.Allocate(), kScratchPage);
  pool.Free(3);
  EXPECT_EQ(pool.Allocate(), 3);
  for (const PageIndex page : pages) pool.Free(page);
  EXPECT_EQ(pool.num_free(), 5);
}

TEST(PagePool, GivesAPageBackWithItsLastHolder) {
  PagePool pool(3);
  const PageIndex page = pool.Allocate();
  pool.Share(page);
  pool.Share(page, PageHolder::kCache);
  EXPECT_EQ(pool.num_holders(page), 3);
  EXPECT_EQ(pool.num_reclaimable(), 0);
  pool.Free(page);
  pool.Free(page);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_reclaimable(), 1);  // the cache alone has it
  pool.Free(page, PageHolder::kCache);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.num_reclaimable(), 0);
}

TEST(PagePool, CountsWhatSequencesHoldByGroup) {
  PagePool pool(5);
  const PageIndex sliding = pool.Allocate(kSlidingGroup);
  const PageIndex full = pool.Allocate(kFullGroup);
  pool.Share(full);
  pool.Share(full, PageHolder::kCache);
  EXPECT_EQ(pool.num_in_use(kSlidingGroup), 1);
  EXPECT_EQ(pool.num_in_use(kFullGroup), 1);
  pool.Free(full);
  EXPECT_EQ(pool.num_in_use(kFullGroup), 1);
  pool.Free(full);  // Now the cache alone has it.
  EXPECT_EQ(pool.num_in_use(kFullGroup), 0);
  pool.Free(sliding);
  EXPECT_EQ(pool.Allocate(kFullGroup), sliding);  // Any page serves any group.
  EXPECT_EQ(pool.num_in_use(kSlidingGroup), 0);
  EXPECT_EQ(pool.num_in_use(kFullGroup), 1);
}

TEST(PagePool, LendsLowPagesFirst) {
  PagePool pool(100);
  EXPECT_EQ(pool.Allocate(), 1);
  EXPECT_EQ(pool.Allocate(), 2);
}

TEST(PagePoolDeathTest, RefusesPagesThatAreNotOut) {
  PagePool pool(4);
  const PageIndex page = pool.Allocate();
  pool.Free(page);
  EXPECT_DEATH(pool.Free(page), "CHECK failed");
  EXPECT_DEATH(pool.Free(kScratchPage), "CHECK failed");
  EXPECT_DEATH(pool.Free(-1), "CHECK failed");
  EXPECT_DEATH(pool.Free(4), "CHECK failed");
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
  const KvLayout layout = MakeKvLayout(plan, 4, GetParam());
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
    for (const auto& [page, count] : occurrences) ASSERT_EQ(pool.num_holders(page), count) << page;
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
  const KvLayout layout = MakeKvLayout(plan, 2);
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
  const KvLayout layout = MakeKvLayout(plan, 4, {8, 64});
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

// A sequence resumed from a snapshot: full blocks shared, the cut one copied, and neither side's
// later rows touch what the other still reads.
TEST(SequencePages, ResumingSharesFullBlocksAndCopiesTheCutOne) {
  const ModelPlan plan = PresetPlan("tiny-e");  // window 24
  const KvLayout layout = MakeKvLayout(plan, 4, {4, 8});
  for (int32_t length = 1; length <= 60; ++length) {
    PagePool pool(400);
    {
      SequencePages first(plan, layout, pool);
      ASSERT_TRUE(first.Reserve(length));
      first.Commit(length);
      PageTables snapshot;
      ASSERT_TRUE(first.TakeSnapshot(length, snapshot)) << length;
      SequencePages second(plan, layout, pool);
      std::vector<PageCopy> copies;
      const int free_before = pool.num_free();
      ASSERT_TRUE(second.Resume(length, snapshot, copies));
      EXPECT_EQ(free_before - pool.num_free(), second.PagesToResume(length));
      EXPECT_EQ(static_cast<int>(copies.size()), (length % 4 != 0) + (length % 8 != 0));
      for (int step = 0; step < 40; ++step) {
        for (SequencePages* sequence : {&first, &second}) {
          ASSERT_TRUE(sequence->Reserve(1));
          for (int group = 0; group < kNumKvGroups; ++group) {
            const PageTable& table = sequence->table(group);
            const int32_t block = sequence->length() / layout.tokens_per_page[group];
            const PageTable& other = (sequence == &first ? second : first).table(group);
            // The page being written is nobody else's, nor the snapshot's.
            EXPECT_EQ(std::count(other.pages.begin(), other.pages.end(), table.PageOf(block)), 0);
            // The first sequence may go on in the snapshot's cut page: rows behind its length.
            if (sequence == &second) {
              const auto& taken = snapshot[group].pages;
              EXPECT_EQ(std::count(taken.begin(), taken.end(), table.PageOf(block)), 0);
            }
          }
          sequence->Commit(1);
        }
      }
      for (const PageTable& table : snapshot) {
        for (const PageIndex page : table.pages) pool.Free(page, PageHolder::kCache);
      }
    }
    EXPECT_EQ(pool.num_free(), 399) << length;
  }
}

// Pages that leave the window are taken over by the rows of a step; where some of those rows are
// taken back, a late snapshot must not get the overwritten pages as the old tokens.
TEST(SequencePages, ASnapshotNeverHoldsAPageThatLaterRowsTookOver) {
  const ModelPlan plan = PresetPlan("tiny-e");  // window 24
  const KvLayout layout = MakeKvLayout(plan, 4, {4, 8});
  PagePool pool(3000);
  SequencePages sequence(plan, layout, pool, /*slack=*/8);
  std::mt19937 random(9);
  for (int step = 0; step < 2000; ++step) {
    const int32_t rows = 1 + random() % kMaxDraftRows;
    ASSERT_TRUE(sequence.Reserve(rows));
    sequence.Commit(1 + random() % rows);
    for (int32_t length = std::max(0, sequence.length() - 8); length <= sequence.length();
         ++length) {
      PageTables snapshot;
      if (!sequence.TakeSnapshot(length, snapshot)) continue;
      const PageTable& taken = snapshot[kSlidingGroup];
      const PageTable& table = sequence.table(kSlidingGroup);
      for (const PageIndex page : taken.pages) {
        ASSERT_EQ(std::count(table.pages.begin(), table.pages.end(), page), 1)
            << "step " << step << " snapshot at " << length << " of " << sequence.length();
      }
      for (const PageTable& each : snapshot) {
        for (const PageIndex page : each.pages) pool.Free(page, PageHolder::kCache);
      }
    }
  }
}

TEST(SequencePages, RefusingTakesNothing) {
  const ModelPlan plan = PresetPlan("tiny-e");
  const KvLayout layout = MakeKvLayout(plan, 4, {8, 8});
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
