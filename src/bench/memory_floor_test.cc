#include "bench/memory_floor.h"

#include <gtest/gtest.h>

#include "model/config.h"
#include "model/footprint.h"
#include "model/presets.h"

namespace lapidary::bench {
namespace {

ModelPlan PlanOf(const char* preset) {
  const Json config = PresetConfig(preset).value();
  return MakeModelPlan(ParseModelConfig(config, preset).value()).value();
}

Footprint Bf16(const ModelPlan& plan) {
  return MakeFootprint(plan, WeightPlan::OfDummies(RequiredTensors(plan), WeightReader::kGpu));
}

// 28 sliding layers of 512 keys and 7 full ones of 1,000, K and V of 256 and 512 values each.
TEST(DecodeStepBytes, AddWeightsAndWhatEveryLayerSees) {
  const ModelPlan plan = PlanOf("e2b");
  const Footprint bf16 = Bf16(plan);
  const double weights = 2.0 * static_cast<double>(MakeFootprint(plan).read_per_token);
  const double kv = 2.0 * (28.0 * 512 * 2 * 256 + 7.0 * 1000 * 2 * 512);
  EXPECT_DOUBLE_EQ(DecodeStepBytes(plan, bf16, 1, 1000, KvFormat::kBF16), weights + kv);
  EXPECT_DOUBLE_EQ(DecodeStepBytes(plan, bf16, 80, 1000, KvFormat::kBF16), weights + 80 * kv);
  EXPECT_DOUBLE_EQ(DecodeStepBytes(plan, bf16, 1, 1000, KvFormat::kF32), weights + 2 * kv);
  EXPECT_DOUBLE_EQ(DecodeStepBytes(plan, bf16, 1, 0, KvFormat::kF32), weights);
  // A byte for each value, four for 128 of them.
  EXPECT_DOUBLE_EQ(DecodeStepBytes(plan, bf16, 1, 1000, KvFormat::kInt8),
                   weights + 0.5 * kv * (1.0 + 4.0 / 128));
}

TEST(DecodeStepBytes, MoreTokensTouchMoreExperts) {
  const ModelPlan plan = PlanOf("26b-a4b");
  const Footprint footprint = MakeFootprint(plan);
  const Footprint bf16 = Bf16(plan);
  const double one = DecodeStepBytes(plan, bf16, 1, 0, KvFormat::kBF16);
  EXPECT_NEAR(one, 2.0 * static_cast<double>(footprint.read_per_token), 1.0);
  EXPECT_GT(DecodeStepBytes(plan, bf16, 8, 0, KvFormat::kBF16), one);
  const double most = 2.0 * static_cast<double>(footprint.total() - footprint.per_layer_embedding);
  EXPECT_LE(DecodeStepBytes(plan, bf16, 1000, 0, KvFormat::kBF16), most * 1.0001);
  EXPECT_GE(DecodeStepBytes(plan, bf16, 1000, 0, KvFormat::kBF16), most * 0.999);
}

}  // namespace
}  // namespace lapidary::bench
