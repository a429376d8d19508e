#include "convert/merged_source.h"

#include <gtest/gtest.h>

#include "adapter/adapter_file.h"
#include "load/model_directory.h"
#include "model/tensor_sources.h"
#include "tensor/decode.h"

namespace lapidary {
namespace {

constexpr const char* kConfig = R"({"r": 2, "lora_alpha": 3})";

class MergedSourceTest : public testing::Test {
 protected:
  // The sum of all factors, one by one.
  static double DeltaAt(const LoraDelta& delta, int64_t row, int64_t col) {
    const std::vector<float> a = DecodeMatrix(delta.a);
    const std::vector<float> b = DecodeMatrix(delta.b);
    double sum = 0.0;
    for (int64_t idx = 0; idx < delta.a.rows; ++idx) {
      sum += double{b[row * delta.a.rows + idx]} * double{a[idx * delta.a.cols + col]};
    }
    return sum * double{delta.scale};
  }

  ThreadPool threads_{2};
};

TEST_F(MergedSourceTest, MatricesWithADeltaHaveItAndOthersAreAsTheyWere) {
  const ModelPlan plan = DescribeModel("tiny-e").value().plan;
  const std::shared_ptr<const TensorSource> base = DummySource::Make(plan, 1, threads_).value();
  AdapterFile file;
  file.AddPair("model.layers.2.mlp.up_proj", 128, 96, 2);
  file.AddPair("model.per_layer_model_projection", 288, 96, 2);
  const auto adapter = Adapter::Parse(kConfig, file.Bytes(), plan, {}, "a").value();
  const MergedSource merged(plan, base, adapter, threads_);
  int num_changed = 0;
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    const TensorView before = base->Get(spec).value();
    const TensorView after = merged.Get(spec).value();
    EXPECT_EQ(after.shape, before.shape);
    const LoraDelta* delta = nullptr;
    if (spec.name == "layers.2.mlp.up_proj.weight") delta = adapter->Find(AdapterSite::kMlpUp, 2);
    if (spec.name == "per_layer_model_projection.weight") {
      delta = adapter->Find(AdapterSite::kPerLayerModelProjection, -1);
    }
    if (delta == nullptr) {
      EXPECT_EQ(after.data, before.data) << spec.name;
      continue;
    }
    ++num_changed;
    EXPECT_EQ(merged.GetStored(spec).value()[0].format, FormatOf(DType::kF32));
    const std::vector<float> was = ToFloats(before);
    const std::vector<float> is = ToFloats(after);
    for (const int64_t row : {0, 1, 77, 127}) {
      for (const int64_t col : {0, 50, 95}) {
        EXPECT_NEAR(is[row * 96 + col], was[row * 96 + col] + DeltaAt(*delta, row, col), 1e-5)
            << spec.name;
      }
    }
  }
  EXPECT_EQ(num_changed, 2);
}

TEST_F(MergedSourceTest, EveryExpertHasItsOwn) {
  const ModelPlan plan = DescribeModel("tiny-moe").value().plan;
  const std::shared_ptr<const TensorSource> base = DummySource::Make(plan, 1, threads_).value();
  AdapterFile file;
  const std::string stem = "base_model.model.model.layers.1.experts";
  file.Add(stem + ".lora_A.weight", {16 * 2, 48}).Add(stem + ".lora_B.weight", {80, 2 * 16});
  file.AddPair("model.layers.1.experts.5.up_proj", 48, 80, 2);
  const auto adapter = Adapter::Parse(kConfig, file.Bytes(), plan, {}, "a").value();
  const MergedSource merged(plan, base, adapter, threads_);
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    const bool is_down = spec.name == "layers.1.experts.down_proj";
    if (!is_down && spec.name != "layers.1.experts.gate_up_proj") continue;
    const std::vector<float> was = ToFloats(base->Get(spec).value());
    const std::vector<float> is = ToFloats(merged.Get(spec).value());
    const int64_t rows = spec.shape[1];
    const int64_t cols = spec.shape[2];
    for (const int expert : {0, 5, 15}) {
      const auto deltas = adapter->OfExpert(
          is_down ? AdapterSite::kExpertDown : AdapterSite::kExpertGateUp, 1, expert);
      for (const int64_t row : {int64_t{0}, rows / 2 - 1, rows / 2, rows - 1}) {
        const int64_t at = (expert * rows + row) * cols + 7;
        double want = was[at];
        for (const LoraDelta& delta : deltas) {
          const int64_t own_row = row - delta.first_row;
          if (own_row >= 0 && own_row < delta.b.rows) want += DeltaAt(delta, own_row, 7);
        }
        EXPECT_NEAR(is[at], want, 1e-5) << spec.name << " " << expert << " " << row;
        if (is_down) {
          EXPECT_NE(is[at], was[at]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lapidary
