#include "kv/kept_pages.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lapidary {
namespace {

std::vector<int32_t> Ids(int count, int32_t first = 0) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

PrefixHashes HashesOf(const std::vector<int32_t>& ids, const PrefixIdentity& identity = {}) {
  PrefixHashes hashes(/*seed=*/7, identity);
  hashes.Extend(ids);
  return hashes;
}

class KeptPagesTest : public testing::Test {
 protected:
  KeptPagesTest() { layout_.tokens_per_page = {4, 8}; }

  // A page that no sequence holds any more; scratch if it is not kept.
  PageIndex Keep(const PrefixHashes& hashes, int32_t block, int32_t end, uint64_t writer = 1) {
    const PageIndex page = pool_.Allocate(kFullGroup);
    const bool is_kept = kept_.Keep(kFullGroup, block, page, hashes, end, writer);
    pool_.Free(page);
    return is_kept ? page : kScratchPage;
  }
  int32_t NumFound(const std::vector<int32_t>& ids, int32_t block = 0) {
    return kept_.Find(kFullGroup, block, HashesOf(ids), 8).num_tokens;
  }

  KvLayout layout_;
  PagePool pool_{100};
  KeptPages kept_{layout_, pool_};
};

TEST_F(KeptPagesTest, FindsHowFarAPageIsAnotherPromptsToo) {
  const PageIndex page = Keep(HashesOf(Ids(20)), 0, 8);
  for (int32_t parting = 0; parting <= 8; ++parting) {
    std::vector<int32_t> other = Ids(20);
    if (parting < 8) other[parting] = 999;
    const KeptPages::Found found = kept_.Find(kFullGroup, 0, HashesOf(other), 8);
    EXPECT_EQ(found.num_tokens, parting);
    EXPECT_EQ(found.page, parting > 0 ? page : kScratchPage);
  }
  EXPECT_EQ(NumFound(Ids(5)), 5);
  EXPECT_EQ(NumFound(Ids(20), /*block=*/1), 0);
  EXPECT_EQ(kept_.Find(kSlidingGroup, 0, HashesOf(Ids(20)), 8).num_tokens, 0);
  EXPECT_EQ(kept_.Find(kFullGroup, 0, HashesOf(Ids(20)), 3).num_tokens, 3);
}

TEST_F(KeptPagesTest, ALaterBlockIsFoundOnlyBehindTheSamePrefix) {
  Keep(HashesOf(Ids(20)), 1, 16);
  EXPECT_EQ(NumFound(Ids(20), 1), 8);
  std::vector<int32_t> other = Ids(20);
  other[0] = 999;
  EXPECT_EQ(NumFound(other, 1), 0);
}

TEST_F(KeptPagesTest, PromptsOfOtherMediaOrAnotherAdapterNeverMeet) {
  const PrefixIdentity cat = {.media = {{.position = 3, .low = 1}}};
  const PrefixIdentity dog = {.media = {{.position = 3, .low = 2}}};
  Keep(HashesOf(Ids(20), cat), 0, 8);
  const auto num_found = [&](const PrefixIdentity& identity) {
    return kept_.Find(kFullGroup, 0, HashesOf(Ids(20), identity), 8).num_tokens;
  };
  EXPECT_EQ(num_found(cat), 8);
  EXPECT_EQ(num_found(dog), 3);  // Before the picture they are one.
  EXPECT_EQ(num_found({}), 3);
  EXPECT_EQ(num_found({.adapter = 1, .media = cat.media}), 0);
}

TEST_F(KeptPagesTest, APartOfABlockGrowsWithItsSequence) {
  const PageIndex page = pool_.Allocate(kFullGroup);
  const PrefixHashes hashes = HashesOf(Ids(20));
  for (const int32_t end : {2, 2, 5, 8}) {
    EXPECT_TRUE(kept_.Keep(kFullGroup, 0, page, hashes, end, 1));
    EXPECT_EQ(NumFound(Ids(20)), end);
    kept_.CheckIntegrity();
  }
  kept_.Drop(page);
  EXPECT_EQ(NumFound(Ids(20)), 0);
}

TEST_F(KeptPagesTest, WhatAnotherPageHoldsIsNotKeptAgain) {
  const PrefixHashes hashes = HashesOf(Ids(20));
  EXPECT_NE(Keep(hashes, 0, 6), kScratchPage);
  EXPECT_EQ(Keep(hashes, 0, 6), kScratchPage);
  EXPECT_EQ(Keep(hashes, 0, 4), kScratchPage);
  EXPECT_NE(Keep(hashes, 0, 8), kScratchPage);
  EXPECT_EQ(Keep(hashes, 0, 8), kScratchPage);
  kept_.CheckIntegrity();
}

TEST_F(KeptPagesTest, OfTwoThatCompleteTheSameBlockOneStays) {
  const PrefixHashes hashes = HashesOf(Ids(20));
  std::vector<int32_t> other_ids = Ids(20);
  const PageIndex first = pool_.Allocate(kFullGroup);
  const PageIndex second = pool_.Allocate(kFullGroup);
  ASSERT_TRUE(kept_.Keep(kFullGroup, 0, first, hashes, 3, 1));
  ASSERT_TRUE(kept_.Keep(kFullGroup, 0, second, hashes, 5, 2));
  EXPECT_TRUE(kept_.Keep(kFullGroup, 0, first, hashes, 8, 1));
  EXPECT_FALSE(kept_.Keep(kFullGroup, 0, second, hashes, 8, 2));
  EXPECT_TRUE(pool_.is_kept(first));
  EXPECT_FALSE(pool_.is_kept(second));
  kept_.CheckIntegrity();
}

TEST_F(KeptPagesTest, PagesThatALongerOneCoversAreDroppedUnlessTheyAreHeld) {
  const std::vector<int32_t> ids = Ids(20);
  std::vector<int32_t> parted = ids;
  parted[2] = 999;
  const PageIndex covered = Keep(HashesOf(ids), 0, 3);
  const PageIndex other = Keep(HashesOf(parted), 0, 4);
  const PageIndex held = pool_.Allocate(kFullGroup);
  ASSERT_TRUE(kept_.Keep(kFullGroup, 0, held, HashesOf(ids), 5, 1));
  const PageIndex longest = Keep(HashesOf(ids), 0, 7);
  std::vector<PageIndex> replaced;
  kept_.DropCovered(longest, [&](PageIndex page) { replaced.push_back(page); });
  EXPECT_EQ(replaced, std::vector<PageIndex>{covered});
  EXPECT_FALSE(pool_.is_kept(covered));
  EXPECT_TRUE(pool_.is_kept(other));
  EXPECT_TRUE(pool_.is_kept(held));
  kept_.CheckIntegrity();
}

TEST_F(KeptPagesTest, APageThatWillBeOverwrittenIsNotFound) {
  const PageIndex page = Keep(HashesOf(Ids(20)), 0, 8);
  pool_.MarkOverwritten(page, true);
  EXPECT_EQ(NumFound(Ids(20)), 0);
  EXPECT_EQ(NumFound(Ids(7)), 0);
  pool_.MarkOverwritten(page, false);
  EXPECT_EQ(NumFound(Ids(20)), 8);
}

}  // namespace
}  // namespace lapidary
