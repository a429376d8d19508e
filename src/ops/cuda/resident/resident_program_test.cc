// What the host decides about a resident step, without a GPU.
#include <gtest/gtest.h>

#include "device/test_devices.h"
#include "ops/cuda/bf16_matrix.h"
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

// E2B's dimensions.
ResidentModel MakeModel() {
  ResidentModel model;
  model.hidden = 1536;
  model.vocab_size = 262144;
  model.ple_width = 256;
  for (const int window : {512, 0}) {
    ResidentLayer layer = Layer(window > 0 ? 0 : 1, window > 0 ? 256 : 512, 1, window);
    layer.qkv = Bf16Matrix(nullptr, 10 * layer.head_dim, model.hidden);
    layer.mlp_width = 6144;
    layer.entry = {.value_len = layer.head_dim,
                   .key_offset = layer.head_dim,
                   .key_len = layer.head_dim,
                   .entry_len = 2 * layer.head_dim};
    layer.kv_layer = static_cast<int>(model.layers.size());
    model.layers.push_back(layer);
  }
  return model;
}

TEST(ResidentProgramTest, EverySmOfACardHasABlockUnlessTheModelIsNarrower) {
  ResidentModel model = MakeModel();
  EXPECT_EQ(ResidentBlocks(TestH200(), model), 132);
  EXPECT_EQ(ResidentBlocks(TestSmallerCard(), model), 108);
  EXPECT_GT(ResidentScratchBytes(TestH200(), model), ResidentScratchBytes(TestSmallerCard(), model))
      << "splits of attention have a place for each block";
  model.hidden = 128;
  EXPECT_EQ(ResidentBlocks(TestH200(), model), 64);
}

TEST(ResidentProgramTest, ACardNeedsSharedMemoryForTheRing) {
  const ResidentModel model = MakeModel();
  EXPECT_TRUE(ResidentStepSupports(TestH200(), model));
  EXPECT_TRUE(ResidentStepSupports(TestSmallerCard(), model));
  DeviceInfo tight = TestSmallerCard();
  tight.shared_bytes_per_block = 64 * 1024;
  EXPECT_FALSE(ResidentStepSupports(tight, model));
}

}  // namespace
}  // namespace lapidary::cuda
