#include "load/limits.h"

#include <gtest/gtest.h>

#include "model/presets.h"

namespace lapidary {
namespace {

ModelPlan PresetPlan(const std::string& name) {
  return MakeModelPlan(ParseModelConfig(*PresetConfig(name), name).value()).value();
}

TEST(BatchLimits, WhatIsNotGivenIsTheDevices) {
  const ModelPlan plan = PresetPlan("e2b");  // a context of 131,072
  const BatchLimits cpu = CompleteLimits({}, plan, DeviceKind::kCpu).value();
  EXPECT_EQ(cpu.max_num_seqs, 64);
  EXPECT_EQ(cpu.max_num_batched_tokens, 512);
  EXPECT_EQ(cpu.max_model_len, 8192);
  const BatchLimits gpu = CompleteLimits({}, plan, DeviceKind::kCuda).value();
  EXPECT_EQ(gpu.max_num_seqs, 256);
  EXPECT_EQ(gpu.max_num_batched_tokens, 2048);
  EXPECT_EQ(gpu.max_model_len, 131072);
}

TEST(BatchLimits, AGpuTakesMoreRowsAtOnceWhereThereAreExperts) {
  const ModelPlan plan = PresetPlan("26b-a4b");
  EXPECT_EQ(CompleteLimits({}, plan, DeviceKind::kCuda)->max_num_batched_tokens, 8192);
  EXPECT_EQ(CompleteLimits({}, plan, DeviceKind::kCpu)->max_num_batched_tokens, 512);
}

TEST(BatchLimits, WhatIsGivenIsKept) {
  const BatchLimits wanted = {
      .max_num_seqs = 5, .max_num_batched_tokens = 3, .max_model_len = 131072};
  const BatchLimits limits = CompleteLimits(wanted, PresetPlan("e2b"), DeviceKind::kCpu).value();
  EXPECT_EQ(limits.max_num_seqs, 5);
  EXPECT_EQ(limits.max_num_batched_tokens, 3);
  EXPECT_EQ(limits.max_model_len, 131072);
}

TEST(BatchLimits, AStepHasARowForEachSequence) {
  BatchLimits wanted;
  wanted.max_num_seqs = 1000;
  EXPECT_EQ(CompleteLimits(wanted, PresetPlan("e2b"), DeviceKind::kCpu)->max_num_batched_tokens,
            1000);
}

TEST(BatchLimits, AContextBeyondTheModelsIsRefused) {
  BatchLimits wanted;
  wanted.max_model_len = 131073;
  const auto limits = CompleteLimits(wanted, PresetPlan("e2b"), DeviceKind::kCuda);
  ASSERT_FALSE(limits.ok());
  EXPECT_NE(limits.error().message.find("131072"), std::string::npos) << limits.error().message;
}

TEST(BatchLimits, CachedValuesAreF32OnTheCpuAndBf16OnAGpu) {
  const ModelPlan plan = PresetPlan("e2b");
  EXPECT_EQ(DefaultKvFormat(DeviceKind::kCpu), KvFormat::kF32);
  EXPECT_EQ(DefaultKvFormat(DeviceKind::kCuda), KvFormat::kBF16);
}

}  // namespace
}  // namespace lapidary
