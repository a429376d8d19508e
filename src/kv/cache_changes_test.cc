#include "kv/cache_changes.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace lapidary {
namespace {

constexpr std::array<int32_t, 4> kTokens = {5, 6, 7, 8};

class CacheChangeQueueTest : public testing::Test {
 protected:
  CacheChangeQueueTest() { hashes_.Extend(kTokens); }
  void KeepPage(CacheChangeQueue& queue, PageIndex page) {
    queue.PageKept({.page = page,
                    .group_idx = kFullGroup,
                    .block = 0,
                    .start = 0,
                    .begin = 0,
                    .tokens = kTokens,
                    .hashes = hashes_});
  }
  PrefixHashes hashes_{1, {.salt = "salt"}};
  CacheChanges changes_;
};

TEST_F(CacheChangeQueueTest, WhatIsHandedOverIsTakenOnceInOrder) {
  CacheChangeQueue queue;
  KeepPage(queue, 3);
  EXPECT_FALSE(queue.Take(&changes_)) << "not handed over yet";
  queue.HandOverAll();
  queue.PageDropped(3);
  KeepPage(queue, 4);
  queue.HandOverAll();
  ASSERT_TRUE(queue.Take(&changes_));
  EXPECT_FALSE(changes_.cleared);
  ASSERT_EQ(changes_.changes.size(), 3u);
  EXPECT_TRUE(changes_.changes[0].is_kept);
  EXPECT_FALSE(changes_.changes[1].is_kept);
  EXPECT_EQ(changes_.changes[1].page, 3);
  EXPECT_EQ(changes_.changes[2].page, 4);
  EXPECT_EQ(changes_.changes[2].before, hashes_.Of(0));
  EXPECT_EQ(changes_.tokens, (std::vector<int32_t>{5, 6, 7, 8, 5, 6, 7, 8}));
  ASSERT_EQ(changes_.origins.size(), 2u);
  EXPECT_EQ(changes_.origins[1].salt, "salt");
  EXPECT_FALSE(queue.Take(&changes_));
  EXPECT_TRUE(changes_.empty());
}

TEST_F(CacheChangeQueueTest, WhoFoundNothingIsWokenOnce) {
  CacheChangeQueue queue;
  int num_wakes = 0;
  queue.set_wake([&] { ++num_wakes; });
  KeepPage(queue, 1);
  queue.HandOverAll();
  EXPECT_EQ(num_wakes, 0) << "no thread waits";
  EXPECT_TRUE(queue.Take(&changes_));
  EXPECT_FALSE(queue.Take(&changes_));
  queue.HandOverAll();
  EXPECT_EQ(num_wakes, 0) << "there is nothing new";
  for (PageIndex page = 2; page < 5; ++page) {
    KeepPage(queue, page);
    queue.HandOverAll();
    EXPECT_EQ(num_wakes, 1);
  }
}

TEST_F(CacheChangeQueueTest, WhileTheTakerIsBusyChangesGather) {
  CacheChangeQueue queue;
  KeepPage(queue, 1);
  queue.HandOver();
  KeepPage(queue, 2);
  queue.HandOver();
  ASSERT_TRUE(queue.Take(&changes_));
  EXPECT_EQ(changes_.changes.size(), 1u);
  EXPECT_FALSE(queue.Take(&changes_));
  queue.HandOver();
  ASSERT_TRUE(queue.Take(&changes_));
  ASSERT_EQ(changes_.changes.size(), 1u);
  EXPECT_EQ(changes_.changes[0].page, 2);
}

TEST_F(CacheChangeQueueTest, WhatGathersTooLongIsLostToo) {
  CacheChangeQueue queue(/*max_bytes=*/1000);
  for (PageIndex page = 1; page < 200; ++page) {
    KeepPage(queue, page);
    queue.PageDropped(page);
    queue.HandOver();
  }
  EXPECT_GT(queue.num_losses(), 0u);
  ASSERT_TRUE(queue.Take(&changes_));
  EXPECT_TRUE(changes_.cleared);
}

TEST_F(CacheChangeQueueTest, AClearedCacheIsAllThatIsLeftOfWhatCameBefore) {
  CacheChangeQueue queue;
  KeepPage(queue, 1);
  queue.HandOverAll();
  KeepPage(queue, 2);
  queue.Cleared();
  KeepPage(queue, 3);
  queue.HandOverAll();
  ASSERT_TRUE(queue.Take(&changes_));
  EXPECT_TRUE(changes_.cleared);
  ASSERT_EQ(changes_.changes.size(), 1u);
  EXPECT_EQ(changes_.changes[0].page, 3);
}

TEST_F(CacheChangeQueueTest, WhatDoesNotFitIsLostWithAllThatWasCachedAndTheTakerIsTold) {
  CacheChangeQueue queue(/*max_bytes=*/1000);
  for (PageIndex page = 1; page < 100; ++page) {
    KeepPage(queue, page);
    queue.HandOverAll();
  }
  EXPECT_GT(queue.num_losses(), 0u);
  ASSERT_TRUE(queue.Take(&changes_));
  EXPECT_TRUE(changes_.cleared);
  EXPECT_LE(changes_.NumBytes(), 1000u);
}

}  // namespace
}  // namespace lapidary
