#include "ops/cuda/linear/gemm_algorithms.h"

#include <gtest/gtest.h>

namespace lapidary::cuda {
namespace {

TEST(GemmAlgorithmsTest, TheTableIsSortedAndEveryEntryIsFound) {
  const std::vector<GemmAlgorithm>& table = GemmTable();
  EXPECT_EQ(GemmTableVersion() > 0, !table.empty());
  for (size_t idx = 0; idx < table.size(); ++idx) {
    const GemmShape& shape = table[idx].shape;
    EXPECT_TRUE(idx == 0 || table[idx - 1].shape < shape) << "entry " << idx;
    EXPECT_EQ(FindGemmAlgorithm(shape), &table[idx]);
    EXPECT_EQ(GemmRowBucket(shape.rows), shape.rows) << "would never be looked up";
    EXPECT_TRUE(shape.out_dim > 0 && shape.in_dim > 0 && shape.in_dim % 8 == 0);
    EXPECT_NE(table[idx].words, (std::array<uint64_t, 8>{}));
  }
}

TEST(GemmAlgorithmsTest, UnknownShapesHaveNone) {
  EXPECT_EQ(FindGemmAlgorithm({}), nullptr);
  EXPECT_EQ(FindGemmAlgorithm({123456, 8, 512, false}), nullptr);
  for (const GemmAlgorithm& entry : GemmTable()) {
    GemmShape other = entry.shape;
    other.f32_output = !other.f32_output;
    EXPECT_EQ(FindGemmAlgorithm(other), nullptr);
  }
}

TEST(GemmAlgorithmsTest, BucketsHoldTheirRowsAndEndAtTheGraphSizes) {
  for (int rows = 1; rows <= 8192; ++rows) {
    const int bucket = GemmRowBucket(rows);
    ASSERT_GE(bucket, rows);
    ASSERT_EQ(GemmRowBucket(bucket), bucket);
    ASSERT_GE(bucket, GemmRowBucket(rows > 1 ? rows - 1 : 1));
  }
  for (const int rows : {16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256, 512, 1024, 2048}) {
    EXPECT_EQ(GemmRowBucket(rows), rows);
  }
  for (int sequences = 8; sequences <= 128; sequences += 8) {
    EXPECT_EQ(GemmRowBucket(4 * sequences), 4 * sequences) << "three drafts each";
  }
}

}  // namespace
}  // namespace lapidary::cuda
