// Attention of patches on the GPU against plain sums in f64.
#include "ops/cuda/towers/patch_attention.h"

#include <gtest/gtest.h>

#include <numeric>

#include "ops/cuda/test_buffer.h"
#include "ops/cuda/test_values.h"

namespace lapidary::cuda {
namespace {

class PatchAttentionTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { LAPIDARY_SKIP_WITHOUT_GPU(); }
};

// q, k, v [3, heads, rows, dim], as bf16 holds them.
std::vector<float> RandomHeads(int num_heads, int rows, int dim, float amplitude) {
  std::mt19937 random(rows + dim);
  std::vector<float> heads = RandomFloats(random, size_t{3} * num_heads * rows * dim, amplitude);
  for (float& value : heads) value = __bfloat162float(__float2bfloat16_rn(value));
  return heads;
}

// As the kernel has them: runs, then tails, zeros where there are no dims.
std::vector<bf16> Laid(const std::vector<float>& heads, int dim) {
  const size_t head_rows = heads.size() / dim;
  const int padded = PaddedHeadDim(dim);
  std::vector<bf16> laid(head_rows * padded, __float2bfloat16_rn(0.0f));
  for (size_t row = 0; row < head_rows; ++row) {
    for (int idx = 0; idx < dim; ++idx) {
      const size_t at = idx < kHeadRun ? row * kHeadRun + idx
                                       : head_rows * kHeadRun + row * kHeadTail + idx - kHeadRun;
      laid[at] = __float2bfloat16_rn(heads[row * dim + idx]);
    }
  }
  return laid;
}

// [rows, heads * dim]
std::vector<float> Expected(const std::vector<float>& heads, int num_heads, int dim,
                            const std::vector<int>& pictures, const Bounds& bounds) {
  const int rows = std::accumulate(pictures.begin(), pictures.end(), 0);
  std::vector<float> out(size_t(rows) * num_heads * dim);
  const auto at = [&](int part, int head, int row) {
    return heads.data() + ((size_t(part) * num_heads + head) * rows + row) * dim;
  };
  for (int head = 0; head < num_heads; ++head) {
    int begin = 0;
    for (const int count : pictures) {
      for (int query = begin; query < begin + count; ++query) {
        std::vector<double> scores(count);
        for (int key = 0; key < count; ++key) {
          scores[key] = std::inner_product(at(0, head, query), at(0, head, query) + dim,
                                           at(1, head, begin + key), 0.0);
        }
        const double highest = *std::max_element(scores.begin(), scores.end());
        double total = 0.0;
        std::vector<double> sums(dim, 0.0);
        for (int key = 0; key < count; ++key) {
          const double weight = std::exp(scores[key] - highest);
          total += weight;
          for (int idx = 0; idx < dim; ++idx) sums[idx] += weight * at(2, head, begin + key)[idx];
        }
        for (int idx = 0; idx < dim; ++idx) {
          out[(size_t(query) * num_heads + head) * dim + idx] =
              std::clamp(static_cast<float>(sums[idx] / total), bounds.low, bounds.high);
        }
      }
      begin += count;
    }
  }
  return out;
}

// Rows against plain sums, and nothing written beside them.
void ExpectAttention(int num_heads, int dim, const std::vector<int>& pictures, float amplitude) {
  const int rows = std::accumulate(pictures.begin(), pictures.end(), 0);
  const std::vector<float> heads = RandomHeads(num_heads, rows, dim, amplitude);
  const Bounds bounds{-0.9f * amplitude, 0.6f * amplitude};
  TestBuffer<bf16> on_gpu(Laid(heads, dim));
  TestBuffer<PatchTile> tiles(MakePatchTiles(pictures));
  TestBuffer<bf16> out(size_t(rows) * num_heads * dim);
  RunPatchAttention(TestContext(), {.rows = rows,
                                    .num_heads = num_heads,
                                    .head_dim = dim,
                                    .heads = on_gpu.get(),
                                    .tiles = tiles.get(),
                                    .num_tiles = static_cast<int>(tiles.size()),
                                    .out = out.get(),
                                    .out_bounds = bounds});
  const std::vector<float> actual = ToFloat(out.Download());
  const std::vector<float> expected = Expected(heads, num_heads, dim, pictures, bounds);
  const size_t row_values = size_t(num_heads) * dim;
  for (int row = 0; row < rows; ++row) {
    ASSERT_LT(Distance(std::span(actual).subspan(row * row_values, row_values),
                       std::span(expected).subspan(row * row_values, row_values)),
              0.02)
        << "row " << row << " of " << rows << ", " << amplitude;
  }
  EXPECT_TRUE(out.GuardsIntact());
}

TEST_P(PatchAttentionTest, EveryPatchSeesItsPictureAndNoOther) {
  // Within a tile of keys and of queries, at their ends, and behind many.
  for (const std::vector<int>& pictures :
       {std::vector<int>{1}, {48, 64, 65}, {128, 7, 129, 192}, {700, 9, 333}}) {
    // Weights are nearly alike, or a few have nearly all of it and maxima grow by much.
    for (const float amplitude : {0.3f, 2.5f}) ExpectAttention(3, GetParam(), pictures, amplitude);
  }
}

// Six tiles: on 132 SMs 240 blocks are all whole, of 300 the last 36 are shared by three SMs each,
// and of 330 the last 66 by two.
TEST_P(PatchAttentionTest, BlocksOfTheLastRoundMayBeShared) {
  for (const int num_heads : {40, 50, 55}) {
    for (const float amplitude : {0.3f, 2.5f}) {
      ExpectAttention(num_heads, GetParam(), {300, 9, 140}, amplitude);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, PatchAttentionTest, testing::Values(16, 64, 72, 80));

TEST(PatchAttentionPlanTest, AFewLastBlocksAreSharedByIdleSms) {
  DeviceInfo device;
  device.num_sms = 132;
  device.cluster_blocks = {0, 132, 132, 129};
  // A picture of 2,394 patches: 19 tiles of 16 heads, and of 12.
  EXPECT_EQ(SplitLastBlocks(304, device), (LastBlocks{.count = 40, .parts = 3}));
  EXPECT_EQ(SplitLastBlocks(228, device), LastBlocks());
  EXPECT_EQ(SplitLastBlocks(264, device).count, 0);
  EXPECT_EQ(SplitLastBlocks(264 + 43, device), (LastBlocks{.count = 43, .parts = 3}));
  EXPECT_EQ(SplitLastBlocks(264 + 44, device), (LastBlocks{.count = 44, .parts = 2}));
  EXPECT_EQ(SplitLastBlocks(264 + 67, device), LastBlocks());
}

}  // namespace
}  // namespace lapidary::cuda
