#include "kv/prefix_hashes.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace lapidary {
namespace {

constexpr uint64_t kSeed = 11;

std::vector<int32_t> Ids(int count) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 100);
  return ids;
}

PrefixHashes HashesOf(const std::vector<int32_t>& ids, const PrefixIdentity& identity = {}) {
  PrefixHashes hashes(kSeed, identity);
  hashes.Extend(ids);
  return hashes;
}

// Lengths at which two prompts of equal tokens are the same prefix: 0 .. the result.
int32_t CommonLength(const PrefixHashes& a, const PrefixHashes& b) {
  int32_t length = 0;
  while (length < a.length() && a.Of(length + 1) == b.Of(length + 1)) ++length;
  for (int32_t later = length + 1; later <= a.length(); ++later) {
    EXPECT_NE(a.Of(later), b.Of(later)) << "met again at " << later;
  }
  return length;
}

TEST(PrefixHashes, EachTokenIsHashedOnceAndInAnyPortions) {
  const std::vector<int32_t> ids = Ids(50);
  const PrefixIdentity identity = {.adapter = 3, .media = {{.position = 20, .low = 1, .high = 2}}};
  const PrefixHashes whole = HashesOf(ids, identity);
  PrefixHashes grown(kSeed, identity);
  int32_t num_hashed = 0;
  for (const int32_t length : {1, 20, 20, 21, 50, 50}) {
    num_hashed += grown.Extend(std::span(ids).first(length));
  }
  EXPECT_EQ(num_hashed, 50);
  EXPECT_EQ(CommonLength(whole, grown), 50);
}

TEST(PrefixHashes, DifferWithEveryTokenLengthAndSeed) {
  std::set<std::pair<uint64_t, uint64_t>> seen;
  const auto insert = [&](const PrefixHash& hash) {
    return seen.emplace(hash.low, hash.high).second;
  };
  const PrefixHashes zeros = HashesOf(std::vector<int32_t>(1000, 0));
  for (int32_t length = 1; length <= 1000; ++length) EXPECT_TRUE(insert(zeros.Of(length)));
  for (int32_t id = 1; id < 1000; ++id) EXPECT_TRUE(insert(HashesOf({id}).Of(1)));
  PrefixHashes other_seed(kSeed + 1, {});
  other_seed.Extend(Ids(1));
  EXPECT_NE(other_seed.Of(1), HashesOf(Ids(1)).Of(1));
}

TEST(PrefixHashes, MediaPartPromptsFromTheirFirstPlaceholderOn) {
  const std::vector<int32_t> ids = Ids(30);
  const PrefixIdentity cat = {.media = {{.position = 10, .low = 5, .high = 6}}};
  const PrefixIdentity dog = {.media = {{.position = 10, .low = 5, .high = 7}}};
  const PrefixIdentity later = {.media = {{.position = 11, .low = 5, .high = 6}}};
  PrefixIdentity cat_and_dog = cat;
  cat_and_dog.media.push_back({.position = 20, .low = 5, .high = 7});
  EXPECT_EQ(CommonLength(HashesOf(ids, cat), HashesOf(ids, cat)), 30);
  EXPECT_EQ(CommonLength(HashesOf(ids, cat), HashesOf(ids)), 10);
  EXPECT_EQ(CommonLength(HashesOf(ids, cat), HashesOf(ids, dog)), 10);
  EXPECT_EQ(CommonLength(HashesOf(ids, cat), HashesOf(ids, later)), 10);
  EXPECT_EQ(CommonLength(HashesOf(ids, cat), HashesOf(ids, cat_and_dog)), 20);
}

TEST(PrefixHashes, AdaptersPartPromptsFromTheStart) {
  const std::vector<int32_t> ids = Ids(30);
  const PrefixIdentity one = {.adapter = 1, .media = {}};
  const PrefixIdentity two = {.adapter = 2, .media = {}};
  EXPECT_EQ(CommonLength(HashesOf(ids, one), HashesOf(ids, one)), 30);
  EXPECT_EQ(CommonLength(HashesOf(ids, one), HashesOf(ids)), 0);
  EXPECT_EQ(CommonLength(HashesOf(ids, one), HashesOf(ids, two)), 0);
}

TEST(PrefixHashes, SaltsPartPromptsFromTheStart) {
  const std::vector<int32_t> ids = Ids(30);
  const PrefixIdentity mine = {.salt = "mine, of seventeen"};
  const PrefixIdentity yours = {.salt = "mine, of seventeeN"};
  const PrefixIdentity longer = {.salt = std::string("mine, of seventeen\0", 19)};
  EXPECT_EQ(CommonLength(HashesOf(ids, mine), HashesOf(ids, mine)), 30);
  for (const PrefixIdentity& other : {PrefixIdentity{}, yours, longer}) {
    EXPECT_EQ(CommonLength(HashesOf(ids, mine), HashesOf(ids, other)), 0);
  }
}

TEST(PrefixIdentity, MediaOutOfOrderOrOutsideThePromptAreRefused) {
  EXPECT_TRUE(CheckIdentity({}, 5).ok());
  EXPECT_TRUE(CheckIdentity({.media = {{.position = 0}, {.position = 4}}}, 5).ok());
  EXPECT_FALSE(CheckIdentity({.media = {{.position = 5}}}, 5).ok());
  EXPECT_FALSE(CheckIdentity({.media = {{.position = -1}}}, 5).ok());
  EXPECT_FALSE(CheckIdentity({.media = {{.position = 3}, {.position = 3}}}, 5).ok());
  EXPECT_FALSE(CheckIdentity({.media = {{.position = 3}, {.position = 1}}}, 5).ok());
}

}  // namespace
}  // namespace lapidary
