#include "model/weight_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/config.h"
#include "model/presets.h"

namespace lapidary {
namespace {

using testing::Contains;
using testing::Field;

std::vector<WeightRow> RowsOf(const char* preset, WeightRequest request) {
  const ModelPlan plan =
      MakeModelPlan(ParseModelConfig(PresetConfig(preset).value(), preset).value()).value();
  return TabulateWeights(WeightPlan::Make(RequiredTensors(plan), nullptr, request).value());
}

TEST(WeightTable, HasARowForEachKindOfTensorAndFormat) {
  const std::vector<WeightRow> rows =
      RowsOf("e4b", {.reader = WeightReader::kGpu, .rounding = DType::kQ4_0});
  const auto row = [&](const std::string& tensors) {
    for (const WeightRow& each : rows) {
      if (each.tensors == tensors) return each;
    }
    ADD_FAILURE() << "no row for " << tensors;
    return WeightRow();
  };
  EXPECT_EQ(row("MLP").stored, "BF16");
  EXPECT_EQ(row("MLP").loaded, "W4 F16/32");
  EXPECT_EQ(row("MLP").kernels, "4-bit codes");
  EXPECT_EQ(row("MLP").num_tensors, 3 * 42);
  EXPECT_EQ(row("embeddings").kernels, "8-bit codes");
  EXPECT_EQ(row("per-layer embeddings").kernels, "gathered rows");
  EXPECT_EQ(row("per-layer gates").kernels, "BF16 values");
}

TEST(WeightTable, AddsUpToThePlan) {
  const ModelPlan model =
      MakeModelPlan(ParseModelConfig(PresetConfig("26b-a4b").value(), "26b-a4b").value()).value();
  const WeightPlan plan =
      WeightPlan::Make(RequiredTensors(model), nullptr, {.rounding = DType::kQ4_0}).value();
  int64_t vectors = 0;
  for (const PlannedWeight& weight : plan.weights()) {
    if (!weight.is_matrix()) vectors += weight.loaded_bytes;
  }
  int64_t bytes = 0;
  const std::vector<WeightRow> rows = TabulateWeights(plan);
  for (const WeightRow& row : rows) bytes += row.loaded_bytes;
  EXPECT_EQ(bytes + vectors, plan.loaded_bytes());
  EXPECT_THAT(rows, Contains(Field(&WeightRow::tensors, "experts")));
  EXPECT_THAT(rows, Contains(Field(&WeightRow::tensors, "router")));
}

}  // namespace
}  // namespace lapidary
