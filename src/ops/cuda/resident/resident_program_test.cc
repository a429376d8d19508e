// What the host decides about a resident step, without a GPU.
#include <gtest/gtest.h>

#include "ops/cuda/resident/resident_limits.h"

namespace lapidary::cuda {
namespace {

ResidentLayer Layer(int group, int head_dim, int num_kv_heads, int window) {
  ResidentLayer layer;
  layer.num_heads = 8;
  layer.num_kv_heads = num_kv_heads;
  layer.head_dim = head_dim;
  layer.window = window;
  layer.group = group;
  return layer;
}

TEST(ResidentProgramTest, GroupsMayDifferButNotTheLayersOfOne) {
  ResidentModel model;
  const ResidentLayer sliding = Layer(0, 256, 2, 512);
  model.layers = {sliding, sliding, Layer(1, 512, 1, 0), sliding};
  EXPECT_TRUE(GroupsAreUniform(model));
  model.layers[3].num_kv_heads = 4;
  EXPECT_FALSE(GroupsAreUniform(model));
  model.layers[3] = sliding;
  model.layers[1].window = 256;
  EXPECT_FALSE(GroupsAreUniform(model));
}

TEST(ResidentProgramTest, EveryWeightMustBeBf16) {
  ResidentModel model;
  model.layers = {Layer(0, 256, 2, 512), Layer(1, 512, 1, 0)};
  EXPECT_TRUE(WeightsAreBf16(model));
  model.head.dtype = DType::kQ4_0;
  EXPECT_FALSE(WeightsAreBf16(model));
  model.head.dtype = DType::kBF16;
  for (MatrixRef ResidentLayer::*weight :
       {&ResidentLayer::qkv, &ResidentLayer::output, &ResidentLayer::gate_up, &ResidentLayer::down,
        &ResidentLayer::ple_gate, &ResidentLayer::ple_projection}) {
    (model.layers[1].*weight).dtype = DType::kF8E4M3;
    EXPECT_FALSE(WeightsAreBf16(model));
    (model.layers[1].*weight).dtype = DType::kBF16;
  }
  EXPECT_TRUE(WeightsAreBf16(model));
}

}  // namespace
}  // namespace lapidary::cuda
