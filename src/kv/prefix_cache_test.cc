#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lapidary {
namespace {

constexpr int kNumPages = 101;
constexpr int kNumFree = kNumPages - 1;

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

class PrefixCacheTest : public testing::Test {
 protected:
  // One page of either group, held by the cache alone, as after TakeSnapshot of a sequence that has
  // ended since.
  PageTables MakeTables() {
    PageTables tables;
    for (int group = 0; group < kNumKvGroups; ++group) {
      const PageIndex page = pool_.Allocate(group);
      pool_.Share(page, PageHolder::kCache);
      pool_.Free(page);
      tables[group].pages = {page};
    }
    return tables;
  }

  PrefixHash Insert(const PrefixHashes& hashes, int32_t length,
                    const std::optional<PrefixHash>& resumed_from = {}) {
    cache_.Insert(hashes.Of(length), length, MakeTables(), resumed_from);
    return hashes.Of(length);
  }
  // A whole prompt with nothing before it.
  PrefixHash InsertPrompt(int32_t first_id) {
    const PrefixHashes hashes = HashesOf(Ids(10, first_id));
    return Insert(hashes, 10);
  }

  PagePool pool_{kNumPages};
  PrefixCache cache_{pool_};
};

TEST_F(PrefixCacheTest, FindsTheLongestSnapshotOfAProperPrefix) {
  const PrefixHashes prompt = HashesOf(Ids(30));
  EXPECT_EQ(cache_.Find(prompt).length, 0);
  for (const int32_t length : {5, 20, 29, 30}) Insert(prompt, length);
  InsertPrompt(500);  // of another prompt
  const PrefixCache::Match match = cache_.Find(prompt);
  EXPECT_EQ(match.length, 29);  // At 30 nothing would be left to compute.
  EXPECT_EQ(match.hash, prompt.Of(29));
  ASSERT_NE(match.tables, nullptr);
  EXPECT_EQ(cache_.Find(HashesOf(Ids(31))).length, 30);
  EXPECT_EQ(cache_.Find(HashesOf(Ids(29))).length, 20);
  std::vector<int32_t> other = Ids(30);
  other[12] = 999;
  EXPECT_EQ(cache_.Find(HashesOf(other)).length, 5);
  EXPECT_EQ(cache_.Find(HashesOf(Ids(5))).length, 0);
  EXPECT_EQ(cache_.Find(HashesOf({})).length, 0);
}

TEST_F(PrefixCacheTest, AMatchHasThePagesThatWereInserted) {
  const PrefixHashes prompt = HashesOf(Ids(30));
  const PageTables tables = MakeTables();
  cache_.Insert(prompt.Of(8), 8, tables, std::nullopt);
  const PrefixCache::Match match = cache_.Find(prompt);
  for (int group = 0; group < kNumKvGroups; ++group) {
    EXPECT_EQ((*match.tables)[group].pages, tables[group].pages);
  }
}

TEST_F(PrefixCacheTest, PromptsOfOtherMediaOrAnotherAdapterNeverMeet) {
  const PrefixIdentity cat = {.media = {{.position = 10, .low = 1}}};
  const PrefixIdentity dog = {.media = {{.position = 10, .low = 2}}};
  Insert(HashesOf(Ids(30), cat), 25);
  EXPECT_EQ(cache_.Find(HashesOf(Ids(30), cat)).length, 25);
  EXPECT_EQ(cache_.Find(HashesOf(Ids(30), dog)).length, 0);
  EXPECT_EQ(cache_.Find(HashesOf(Ids(30))).length, 0);
  EXPECT_EQ(cache_.Find(HashesOf(Ids(30), {.adapter = 1, .media = cat.media})).length, 0);
  Insert(HashesOf(Ids(30), cat), 10);  // Before the picture they are one.
  EXPECT_EQ(cache_.Find(HashesOf(Ids(30), dog)).length, 10);
}

TEST_F(PrefixCacheTest, TheLeastRecentlyUsedGoesFirst) {
  const PrefixHash first = InsertPrompt(100);
  const PrefixHash second = InsertPrompt(200);
  const PrefixHash third = InsertPrompt(300);
  cache_.MarkUsed(first, /*user=*/1);
  ASSERT_TRUE(cache_.EvictOne());
  EXPECT_FALSE(cache_.Contains(second));
  ASSERT_TRUE(cache_.EvictOne());
  EXPECT_FALSE(cache_.Contains(third));
  ASSERT_TRUE(cache_.EvictOne());
  EXPECT_FALSE(cache_.Contains(first));
  EXPECT_FALSE(cache_.EvictOne());
}

TEST_F(PrefixCacheTest, FindingIsNoUse) {
  const PrefixHash first = InsertPrompt(100);
  const PrefixHash second = InsertPrompt(200);
  EXPECT_EQ(cache_.Find(HashesOf(Ids(20, 100))).length, 10);
  ASSERT_TRUE(cache_.EvictOne());
  EXPECT_FALSE(cache_.Contains(first));
  EXPECT_TRUE(cache_.Contains(second));
}

TEST_F(PrefixCacheTest, ASnapshotThatItsOnlyUserHasOvertakenGoesFirst) {
  const PrefixHash older = InsertPrompt(100);
  const PrefixHashes conversation = HashesOf(Ids(50, 500));
  const PrefixHash turn = Insert(conversation, 20);
  cache_.MarkUsed(turn, /*user=*/1);
  cache_.MarkUsed(turn, /*user=*/1);  // It came back after a preemption.
  const PrefixHash next_turn = Insert(conversation, 40, turn);
  ASSERT_TRUE(cache_.EvictOne());
  EXPECT_FALSE(cache_.Contains(turn));
  EXPECT_TRUE(cache_.Contains(older));
  EXPECT_TRUE(cache_.Contains(next_turn));
}

TEST_F(PrefixCacheTest, ASnapshotOfSeveralUsersIsNotOvertaken) {
  const PrefixHash older = InsertPrompt(100);
  const PrefixHashes conversation = HashesOf(Ids(50, 500));
  const PrefixHash system_turn = Insert(conversation, 20);
  cache_.MarkUsed(system_turn, /*user=*/1);
  cache_.MarkUsed(system_turn, /*user=*/2);
  Insert(conversation, 40, system_turn);
  ASSERT_TRUE(cache_.EvictOne());
  EXPECT_FALSE(cache_.Contains(older));
  EXPECT_TRUE(cache_.Contains(system_turn));
}

TEST_F(PrefixCacheTest, AnOvertakenSnapshotThatIsUsedAgainIsWorthKeeping) {
  const PrefixHash older = InsertPrompt(100);
  const PrefixHashes conversation = HashesOf(Ids(50, 500));
  const PrefixHash turn = Insert(conversation, 20);
  cache_.MarkUsed(turn, /*user=*/1);
  Insert(conversation, 40, turn);
  cache_.MarkUsed(turn, /*user=*/2);
  ASSERT_TRUE(cache_.EvictOne());
  EXPECT_FALSE(cache_.Contains(older));
  EXPECT_TRUE(cache_.Contains(turn));
}

TEST_F(PrefixCacheTest, EvictionCanSpareOne) {
  const PrefixHash first = InsertPrompt(100);
  const PrefixHash second = InsertPrompt(200);
  ASSERT_TRUE(cache_.EvictOne(/*kept=*/first));
  EXPECT_TRUE(cache_.Contains(first));
  EXPECT_FALSE(cache_.Contains(second));
  EXPECT_FALSE(cache_.EvictOne(/*kept=*/first));
  EXPECT_TRUE(cache_.Contains(first));
}

TEST_F(PrefixCacheTest, InsertingAgainGivesThePagesBackAndMakesItRecent) {
  const PrefixHash first = InsertPrompt(100);
  const PrefixHash second = InsertPrompt(200);
  const int num_free = pool_.num_free();
  InsertPrompt(100);
  EXPECT_EQ(pool_.num_free(), num_free);
  EXPECT_EQ(cache_.num_snapshots(), 2);
  ASSERT_TRUE(cache_.EvictOne());
  EXPECT_TRUE(cache_.Contains(first));
  EXPECT_FALSE(cache_.Contains(second));
}

TEST_F(PrefixCacheTest, ASnapshotIsThereWithThePagesOfBothGroupsOrGone) {
  const PrefixHashes prompt = HashesOf(Ids(30));
  const PageTables tables = MakeTables();
  const PageIndex shared_page = tables[kFullGroup].pages[0];
  pool_.Share(shared_page);  // A running sequence reads it too.
  cache_.Insert(prompt.Of(8), 8, tables, std::nullopt);
  EXPECT_EQ(pool_.num_free(), kNumFree - kNumKvGroups);
  ASSERT_TRUE(cache_.EvictOne());
  EXPECT_EQ(cache_.Find(prompt).length, 0);
  EXPECT_EQ(pool_.num_free(), kNumFree - 1);
  EXPECT_EQ(pool_.num_holders(shared_page), 1);
  pool_.Free(shared_page);
  EXPECT_EQ(pool_.num_free(), kNumFree);
}

TEST_F(PrefixCacheTest, ClearGivesEveryPageBack) {
  for (int idx = 0; idx < 9; ++idx) InsertPrompt(100 * idx);
  std::vector<int> holders(kNumPages, 0);
  cache_.CountHolders(holders);
  EXPECT_EQ(std::accumulate(holders.begin(), holders.end(), 0), 9 * kNumKvGroups);
  EXPECT_EQ(pool_.num_reclaimable(), 9 * kNumKvGroups);
  cache_.Clear();
  EXPECT_EQ(cache_.num_snapshots(), 0);
  EXPECT_EQ(pool_.num_free(), kNumFree);
}

}  // namespace
}  // namespace lapidary
