#include "model/converted_source.h"

#include <gtest/gtest.h>

#include <cstring>

#include "model/presets.h"
#include "model/tensor_sources.h"
#include "tensor/decode.h"
#include "tensor/quantise.h"
#include "tensor/repack.h"

namespace lapidary {
namespace {

std::unique_ptr<ConvertedSource> Rounded(const ModelPlan& plan,
                                         std::shared_ptr<const TensorSource> stored, DType to,
                                         ThreadPool& threads) {
  const WeightPlan weights =
      WeightPlan::Make(RequiredTensors(plan), stored.get(), {.rounding = to}).value();
  return ConvertedSource::Make(weights, std::move(stored), threads, /*release_stored=*/false)
      .value();
}

TEST(ConvertedSource, MatricesAreRoundedAndTheRestIsLeftWhereItLies) {
  ThreadPool threads(2);
  for (const char* preset : {"tiny-dense", "tiny-moe"}) {
    const ModelPlan plan =
        MakeModelPlan(ParseModelConfig(*PresetConfig(preset), preset).value()).value();
    const std::shared_ptr<const TensorSource> stored = DummySource::Make(plan, 1, threads).value();
    const auto quantised = Rounded(plan, stored, DType::kQ4_0, threads);
    int num_rounded = 0;
    for (const TensorSpec& spec : RequiredTensors(plan)) {
      const TensorView before = stored->Get(spec).value();
      const TensorView after = quantised->Get(spec).value();
      ASSERT_EQ(after.shape, before.shape) << spec.name;
      const bool is_matrix = spec.component == TensorComponent::kAttention ||
                             spec.component == TensorComponent::kMlp ||
                             spec.component == TensorComponent::kExperts;
      if (after.data == before.data) {
        EXPECT_FALSE(is_matrix && spec.shape.size() > 1 && spec.shape.back() % 32 == 0)
            << spec.name;
        EXPECT_FALSE(spec.component == TensorComponent::kEmbedding && spec.shape.back() % 32 == 0);
        continue;
      }
      ++num_rounded;
      EXPECT_EQ(after.dtype,
                spec.component == TensorComponent::kEmbedding ? DType::kQ8_0 : DType::kQ4_0);
      const std::vector<float> values = ToFloats(before);
      std::vector<std::byte> expected(after.num_bytes());
      Quantise(values.data(), before.num_elements(), after.dtype, expected.data());
      EXPECT_EQ(std::memcmp(after.data, expected.data(), expected.size()), 0) << spec.name;
    }
    EXPECT_GT(num_rounded, plan.num_layers);
  }
}

TEST(ConvertedSource, StepsOfFloat8AreWithinASixteenthAndKeepTheLargest) {
  ThreadPool threads(2);
  const ModelPlan plan =
      MakeModelPlan(ParseModelConfig(*PresetConfig("tiny-moe"), "test").value()).value();
  const std::shared_ptr<const TensorSource> stored = DummySource::Make(plan, 1, threads).value();
  const auto quantised = Rounded(plan, stored, DType::kF8E4M3, threads);
  int num_rounded = 0;
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    if (spec.shape.size() < 2) continue;
    const MatrixRef before = stored->GetStored(spec).value().front();
    const MatrixRef after = quantised->GetStored(spec).value().front();
    if (after.data == before.data) {
      EXPECT_FALSE(spec.component == TensorComponent::kMlp && spec.role == TensorRole::kMatrix);
      continue;
    }
    ++num_rounded;
    ASSERT_EQ(after.format, kRoundedFloat8) << spec.name;
    EXPECT_FALSE(quantised->Get(spec).ok());
    const std::vector<float> exact = DecodeMatrix(before), rounded = DecodeMatrix(after);
    const size_t cols = spec.shape.back();
    for (size_t row = 0; row < exact.size() / cols; ++row) {
      float largest = 0.0f;
      for (size_t col = 0; col < cols; ++col) {
        largest = std::max(largest, std::abs(exact[row * cols + col]));
      }
      for (size_t col = 0; col < cols; ++col) {
        const float value = exact[row * cols + col];
        // Half of a step of 3 bits; for the largest, that of the scale; for the smallest, half of
        // theirs.
        const float tolerance = std::max(std::abs(value) * 0.0645f, largest * 0x1p-17f);
        ASSERT_NEAR(rounded[row * cols + col], value, tolerance) << spec.name;
      }
    }
  }
  EXPECT_GT(num_rounded, plan.num_layers);
}

}  // namespace
}  // namespace lapidary
