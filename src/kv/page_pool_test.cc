#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace lapidary {
namespace {

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

TEST(PagePool, GivesAPageBackWithItsLastSequenceUnlessItIsKept) {
  PagePool pool(3);
  const PageIndex page = pool.Allocate();
  pool.Share(page);
  pool.Keep(page);
  EXPECT_EQ(pool.num_sequences(page), 2);
  EXPECT_EQ(pool.num_reclaimable(), 0);
  pool.Free(page);
  pool.Free(page);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_reclaimable(), 1);  // the cache alone has it
  pool.Share(page);
  EXPECT_EQ(pool.num_reclaimable(), 0);
  pool.Drop(page);
  EXPECT_EQ(pool.num_free(), 1);
  pool.Free(page);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.num_reclaimable(), 0);
}

TEST(PagePool, CountsWhatSequencesAndTheCacheHoldByGroup) {
  PagePool pool(5);
  const PageIndex sliding = pool.Allocate(kSlidingGroup);
  const PageIndex full = pool.Allocate(kFullGroup);
  pool.Share(full);
  pool.Keep(full);
  EXPECT_EQ(pool.num_in_use(kSlidingGroup), 1);
  EXPECT_EQ(pool.num_in_use(kFullGroup), 1);
  pool.Free(full);
  EXPECT_EQ(pool.num_in_use(kFullGroup), 1);
  pool.Free(full);  // Now the cache alone has it.
  EXPECT_EQ(pool.num_in_use(kFullGroup), 0);
  EXPECT_EQ(pool.num_reclaimable(kFullGroup), 1);
  EXPECT_EQ(pool.num_reclaimable(kSlidingGroup), 0);
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

class KeptPagesInOrder : public testing::Test {
 protected:
  PageIndex MakeKept(PageWorth worth) {
    const PageIndex page = pool_.Allocate();
    pool_.Keep(page);
    pool_.Free(page, worth);
    return page;
  }
  std::vector<PageIndex> DropAll() {
    std::vector<PageIndex> order;
    while (pool_.num_reclaimable() > 0) {
      order.push_back(pool_.FirstToGo());
      pool_.Drop(order.back());
    }
    return order;
  }
  PagePool pool_{20};
};

TEST_F(KeptPagesInOrder, WhatWasPassedGoesBeforeEndsAndOfEachTheLeastRecentlyUsedFirst) {
  const PageIndex end_1 = MakeKept(PageWorth::kEnd);
  const PageIndex passed_1 = MakeKept(PageWorth::kPassing);
  const PageIndex end_2 = MakeKept(PageWorth::kEnd);
  const PageIndex passed_2 = MakeKept(PageWorth::kPassing);
  pool_.Share(end_1);  // used again
  pool_.Free(end_1);
  EXPECT_LT(pool_.FirstKey(), pool_.KeyIfFreed(passed_1, PageWorth::kPassing));
  EXPECT_EQ(DropAll(), (std::vector<PageIndex>{passed_1, passed_2, end_2, end_1}));
}

TEST_F(KeptPagesInOrder, AClaimedPageOutlivesOthersForSomeTurnoversOfThePool) {
  const PageIndex claimed = MakeKept(PageWorth::kPassing);
  pool_.SetClaim(claimed, pool_.NextClaim());
  int num_outlived = 0;
  for (int idx = 0; idx < 1000; ++idx) {
    const PageIndex other = MakeKept(PageWorth::kEnd);
    const PageIndex first = pool_.FirstToGo();
    pool_.Drop(first);
    if (first == claimed) break;
    EXPECT_EQ(first, other);
    ++num_outlived;
  }
  EXPECT_GT(num_outlived, 2 * pool_.num_pages());
  EXPECT_LT(num_outlived, 8 * pool_.num_pages());
}

TEST_F(KeptPagesInOrder, AClaimTakenBackLeavesTheLastUse) {
  const PageIndex first = MakeKept(PageWorth::kEnd);
  const PageIndex second = MakeKept(PageWorth::kEnd);
  pool_.SetClaim(first, pool_.NextClaim());
  EXPECT_EQ(pool_.FirstToGo(), second);
  pool_.SetClaim(first, 0);
  EXPECT_EQ(pool_.FirstToGo(), first);
}

// Against a sorted map.
TEST(EvictionOrder, IsSortedAfterAnyChanges) {
  constexpr int kNumPages = 50;
  EvictionOrder order(kNumPages);
  std::map<int64_t, int32_t> by_key;
  std::mt19937 random(3);
  for (int step = 0; step < 20000; ++step) {
    const int32_t page = static_cast<int32_t>(random() % kNumPages);
    if (order.contains(page)) by_key.erase(order.key(page));
    if (random() % 3 == 0) {
      if (order.contains(page)) order.Remove(page);
    } else {
      const int64_t key = static_cast<int64_t>(random()) * 100000 + step;
      order.Set(page, key);
      by_key[key] = page;
    }
    ASSERT_EQ(order.size(), static_cast<int>(by_key.size()));
    if (!by_key.empty()) {
      ASSERT_EQ(order.first(), by_key.begin()->second);
    }
  }
}

TEST(PagePoolDeathTest, RefusesPagesThatAreNotOut) {
  PagePool pool(4);
  const PageIndex page = pool.Allocate();
  pool.Free(page);
  EXPECT_DEATH(pool.Free(page), "CHECK failed");
  EXPECT_DEATH(pool.Share(page), "CHECK failed");
  EXPECT_DEATH(pool.Keep(page), "CHECK failed");
  EXPECT_DEATH(pool.Free(kScratchPage), "CHECK failed");
  EXPECT_DEATH(pool.Free(-1), "CHECK failed");
  EXPECT_DEATH(pool.Free(4), "CHECK failed");
}

}  // namespace
}  // namespace lapidary
