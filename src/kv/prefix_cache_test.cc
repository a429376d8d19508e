#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "model/presets.h"

namespace lapidary {
namespace {

constexpr int kWindow = 24;  // of tiny-e
constexpr int kSlidingTokens = 4;
constexpr int kFullTokens = 8;

std::vector<int32_t> Ids(int count, int32_t first = 0) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

PrefixHashes HashesOf(const std::vector<int32_t>& ids) {
  PrefixHashes hashes(/*seed=*/7, {});
  hashes.Extend(ids);
  return hashes;
}

class PrefixCacheTest : public testing::Test {
 protected:
  // Leaves all pages of the first `length` tokens but the sliding ones before `first_sliding`.
  void Leave(const PrefixHashes& hashes, int32_t length, int32_t first_sliding = 0) {
    std::vector<PageIndex> pages;
    for (int group = 0; group < kNumKvGroups; ++group) {
      const int tokens = layout_.tokens_per_page[group];
      int32_t block = group == kSlidingGroup ? first_sliding / tokens : 0;
      for (; block * tokens < length; ++block) {
        pages.push_back(pool_.Allocate(group));
        ASSERT_NE(pages.back(), kScratchPage);
        cache_.Keep(group, block, pages.back(), hashes, length, ++last_writer_);
      }
    }
    for (auto page = pages.rbegin(); page != pages.rend(); ++page) pool_.Free(*page);
  }
  // Of what a prompt of these tokens and one more finds.
  int32_t Found(const std::vector<int32_t>& ids) {
    std::vector<int32_t> prompt = ids;
    prompt.push_back(100000);
    return cache_.Find(HashesOf(prompt)).length;
  }
  void EvictPages(int num_pages) {
    for (int idx = 0; idx < num_pages; ++idx) ASSERT_TRUE(cache_.EvictOne());
  }

  const ModelPlan plan_ =
      MakeModelPlan(ParseModelConfig(*PresetConfig("tiny-e"), "tiny-e").value()).value();
  const KvLayout layout_ = MakeKvLayout(plan_, KvFormat::kF32, {kSlidingTokens, kFullTokens});
  PagePool pool_{201};
  PrefixCache cache_{plan_, layout_, pool_};
  uint64_t last_writer_ = 0;
};

TEST_F(PrefixCacheTest, APromptGoesOnWhereItPartsFromWhatWasThereWhereverThatIs) {
  const std::vector<int32_t> ids = Ids(90);
  Leave(HashesOf(ids), 90);
  for (int32_t parting = 0; parting < 90; ++parting) {
    std::vector<int32_t> other = ids;
    other[parting] = 999;
    const PrefixCache::Match match = cache_.Find(HashesOf(other));
    ASSERT_EQ(match.length, parting);
    EXPECT_EQ(match.parts, parting > 0);
    if (parting == 0) continue;
    for (int group = 0; group < kNumKvGroups; ++group) {
      const int tokens = layout_.tokens_per_page[group];
      EXPECT_EQ(match.tables[group].end_block(), (parting + tokens - 1) / tokens);
    }
    EXPECT_EQ(match.tables[kFullGroup].first_block, 0);
    EXPECT_EQ(match.tables[kSlidingGroup].first_block,
              std::max(0, parting - kWindow + 1) / kSlidingTokens);
  }
  EXPECT_EQ(cache_.Find(HashesOf(ids)).length, 89);  // At 90 nothing would be left to compute.
  EXPECT_EQ(cache_.Find(HashesOf(Ids(1))).length, 0);
  EXPECT_EQ(cache_.Find(HashesOf({})).length, 0);
  const PrefixCache::Match at_end = cache_.Find(HashesOf(Ids(91)));
  EXPECT_EQ(at_end.length, 90);
  EXPECT_FALSE(at_end.parts);
}

TEST_F(PrefixCacheTest, WithoutItsWindowAPositionIsNoneToGoOnFrom) {
  const std::vector<int32_t> ids = Ids(120);
  Leave(HashesOf(ids), 120, /*first_sliding=*/60);
  EXPECT_EQ(Found(ids), 120);
  for (int32_t length = 1; length < 120; ++length) {
    const bool has_window = std::max(0, length - kWindow + 1) >= 60;
    EXPECT_EQ(Found(Ids(length)), has_window ? length : 0) << length;
  }
}

TEST_F(PrefixCacheTest, AGapInTheWindowsIsPassedOver) {
  const std::vector<int32_t> ids = Ids(160);
  Leave(HashesOf(ids), 160);
  const auto gap = cache_.kept().Find(kSlidingGroup, 20, HashesOf(ids), 4);  // tokens 80 to 83
  ASSERT_EQ(gap.num_tokens, 4);
  cache_.Drop(gap.page);
  EXPECT_EQ(Found(Ids(79)), 79);
  EXPECT_EQ(Found(Ids(80)), 80);
  EXPECT_EQ(Found(Ids(83)), 80);
  EXPECT_EQ(Found(Ids(83 + kWindow - 1)), 80);
  EXPECT_EQ(Found(Ids(83 + kWindow)), 83 + kWindow);
}

TEST_F(PrefixCacheTest, NoPromptGoesOnWhereItIsNotAllowed) {
  Leave(HashesOf(Ids(90)), 90);
  const auto resumable = [](int32_t position) {
    return position > 30 && position < 70 ? 30 : position;
  };
  const auto found = [&](int count) {
    return cache_.Find(HashesOf(Ids(count + 1)), resumable).length;
  };
  EXPECT_EQ(found(29), 29);
  EXPECT_EQ(found(31), 30);
  EXPECT_EQ(found(69), 30);
  EXPECT_EQ(found(70), 70);
}

TEST_F(PrefixCacheTest, ThePagesOfTheLeastRecentlyUsedPromptGoFirst) {
  Leave(HashesOf(Ids(40, 1000)), 40);
  Leave(HashesOf(Ids(40, 2000)), 40);
  const int num_pages = (40 / kSlidingTokens + 40 / kFullTokens);
  EvictPages(num_pages);
  EXPECT_EQ(Found(Ids(40, 1000)), 0);
  EXPECT_EQ(Found(Ids(40, 2000)), 40);
  EXPECT_EQ(cache_.num_evicted(), static_cast<uint64_t>(num_pages));
  EvictPages(num_pages);
  EXPECT_FALSE(cache_.EvictOne());
  EXPECT_EQ(pool_.num_free(), 200);
}

TEST_F(PrefixCacheTest, APointOutlivesWhatWasUsedLater) {
  const PrefixHashes point = HashesOf(Ids(40, 1000));
  Leave(point, 40);
  cache_.MarkPoint(point, 40);
  EXPECT_TRUE(cache_.IsPoint(point, 40));
  EXPECT_FALSE(cache_.IsPoint(point, 39));
  Leave(HashesOf(Ids(40, 2000)), 40);
  EvictPages(40 / kSlidingTokens + 40 / kFullTokens);
  EXPECT_EQ(Found(Ids(40, 2000)), 0);
  // Of the point's own pages the sliding ones before its window were not claimed.
  EXPECT_EQ(Found(Ids(40, 1000)), 40);
}

TEST_F(PrefixCacheTest, NoPointWithoutAllItsPages) {
  const PrefixHashes hashes = HashesOf(Ids(60));
  Leave(hashes, 60, /*first_sliding=*/40);
  cache_.MarkPoint(hashes, 60);
  EXPECT_FALSE(cache_.IsPoint(hashes, 60));
  cache_.MarkPoint(HashesOf(Ids(70)), 70);
  EXPECT_FALSE(cache_.IsPoint(HashesOf(Ids(70)), 70));
}

class LeavingAPoint : public PrefixCacheTest {
 protected:
  // A conversation whose first turn ends at 40 and whose second at 80, where it is left; then
  // another prompt. Pages go until one of both is lost.
  void GoOn(bool prompts_part, std::vector<uint64_t> users) {
    Leave(turns_, 40);
    cache_.MarkPoint(turns_, 40);
    for (const uint64_t user : users) cache_.UsePoint(turns_, 40, prompts_part, user);
    Leave(turns_, 80, /*first_sliding=*/40);
    cache_.MarkPoint(turns_, 80);
    cache_.LeavePoint(turns_, 40);
    Leave(other_, 40);
    cache_.MarkPoint(other_, 40);
    while (Found(Ids(40, 1000)) == 40 && Found(Ids(40, 2000)) == 40) EvictPages(1);
  }
  const PrefixHashes turns_ = HashesOf(Ids(80, 1000));
  const PrefixHashes other_ = HashesOf(Ids(40, 2000));
};

TEST_F(LeavingAPoint, OfASingleUserGivesItsWindowUp) {
  GoOn(/*prompts_part=*/false, {1, 1});  // It came back after a preemption.
  EXPECT_EQ(Found(Ids(40, 2000)), 40);
  EXPECT_EQ(Found(Ids(80, 1000)), 80);
  EXPECT_FALSE(cache_.IsPoint(turns_, 40));
}

TEST_F(LeavingAPoint, OfSeveralUsersChangesNothing) {
  GoOn(/*prompts_part=*/false, {1, 2});
  // Both are claimed, so the pages claimed first went first: nothing else set them apart.
  EXPECT_EQ(Found(Ids(40, 2000)), 40);
  EXPECT_TRUE(cache_.IsPoint(turns_, 80));
}

TEST_F(PrefixCacheTest, WherePromptsPartTheFirstSequenceIsAUserToo) {
  const PrefixHashes hashes = HashesOf(Ids(60));
  Leave(hashes, 60);
  cache_.UsePoint(hashes, 30, /*prompts_part=*/true, /*user=*/1);
  cache_.UsePoint(hashes, 45, /*prompts_part=*/false, /*user=*/1);
  cache_.LeavePoint(hashes, 30);
  cache_.LeavePoint(hashes, 45);
  EXPECT_TRUE(cache_.IsPoint(hashes, 30));
  EXPECT_FALSE(cache_.IsPoint(hashes, 45));
}

TEST_F(PrefixCacheTest, APointMovesToThePageThatCoversItsOwn) {
  const PrefixHashes hashes = HashesOf(Ids(60));
  Leave(hashes, 42);
  cache_.UsePoint(hashes, 42, /*prompts_part=*/true, /*user=*/1);
  Leave(hashes, 60, /*first_sliding=*/40);
  EXPECT_TRUE(cache_.IsPoint(hashes, 42));
  cache_.CheckIntegrity();
  // The two cut pages are there no more.
  EXPECT_EQ(pool_.num_reclaimable(), 60 / kSlidingTokens + (60 + kFullTokens - 1) / kFullTokens);
}

TEST_F(PrefixCacheTest, MakingRoomGivesUpOnlyWhatWouldGoBefore) {
  Leave(HashesOf(Ids(40)), 40);
  while (pool_.Allocate() != kScratchPage) {
  }
  EXPECT_FALSE(cache_.MakeRoom(pool_.KeyNow(PageWorth::kPassing)));
  EXPECT_TRUE(cache_.MakeRoom(pool_.KeyNow(PageWorth::kEnd)));
  EXPECT_EQ(pool_.num_free(), 1);
  cache_.MarkPoint(HashesOf(Ids(40)), 36);
}

TEST_F(PrefixCacheTest, WhatASequenceWroteCanBeDropped) {
  const PrefixHashes hashes = HashesOf(Ids(16));
  const PageIndex first = pool_.Allocate(kFullGroup);
  const PageIndex second = pool_.Allocate(kFullGroup);
  cache_.Keep(kFullGroup, 0, first, hashes, 16, /*writer=*/70);
  cache_.Keep(kFullGroup, 1, second, hashes, 16, /*writer=*/71);
  cache_.DropWrittenBy(71);
  EXPECT_TRUE(pool_.is_kept(first));
  EXPECT_FALSE(pool_.is_kept(second));
  cache_.CheckIntegrity();
}

TEST_F(PrefixCacheTest, ClearGivesEveryPageBack) {
  for (int idx = 0; idx < 9; ++idx) {
    const PrefixHashes hashes = HashesOf(Ids(10, 100 * idx));
    Leave(hashes, 10);
    cache_.MarkPoint(hashes, 10);
  }
  EXPECT_EQ(pool_.num_reclaimable(), 9 * 5);
  cache_.Clear();
  cache_.CheckIntegrity();
  EXPECT_EQ(pool_.num_free(), 200);
}

}  // namespace
}  // namespace lapidary
