#include "towers/encoded_media_cache.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

ContentDigest Key(uint64_t value) { return {value, ~value}; }

EncodedMedium Medium(int num_tokens) {
  EncodedMedium medium;
  medium.num_tokens = num_tokens;
  medium.rows = std::make_shared<const std::vector<float>>(num_tokens);
  return medium;
}

TEST(EncodedMediaCacheTest, KeepsTheLatestWithinItsBudget) {
  EncodedMediaCache cache(10 * sizeof(float));
  cache.Put(Key(1), Medium(4));
  cache.Put(Key(2), Medium(4));
  ASSERT_TRUE(cache.Find(Key(1)));
  EXPECT_EQ(cache.Find(Key(1))->num_tokens, 4);
  cache.Put(Key(3), Medium(5));  // the second was used longest ago
  EXPECT_FALSE(cache.Find(Key(2)));
  EXPECT_TRUE(cache.Find(Key(1)));
  EXPECT_TRUE(cache.Find(Key(3)));
  EXPECT_EQ(cache.stats().num_bytes, 9 * static_cast<int64_t>(sizeof(float)));
  cache.Put(Key(4), Medium(11));  // larger than everything
  EXPECT_FALSE(cache.Find(Key(4)));
  EXPECT_TRUE(cache.Find(Key(1)));
  EXPECT_EQ(cache.stats().num_hits, uint64_t{5});
  EXPECT_EQ(cache.stats().num_misses, uint64_t{2});
}

TEST(ContentDigestTest, DependsOnDataAndFacts) {
  const std::vector<std::byte> data(3);
  const std::vector<std::byte> longer(4);
  const ContentDigest digest = DigestContent(data, {1, 2});
  EXPECT_EQ(digest, DigestContent(data, {1, 2}));
  EXPECT_NE(digest, DigestContent(data, {1, 3}));
  EXPECT_NE(digest, DigestContent(longer, {1, 2}));
}

}  // namespace
}  // namespace lapidary
