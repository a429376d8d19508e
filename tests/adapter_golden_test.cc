// LoRA adapters on the CPU against PEFT on transformers in float32 (tools/make_lora_goldens.py), on
// the files that PEFT wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "adapter/adapter.h"
#include "engine/single_sequence.h"
#include "load/load_model.h"
#include "tests/golden_file.h"
#include "tests/test_models.h"

namespace lapidary {
namespace {

constexpr double kLogitTolerance = 1e-4;  // of the largest logit

struct AdapterCase {
  std::string adapter;
  std::string golden;  // with the logits
  int num_applied = 0;
  int num_ignored = 0;
};

class AdapterGoldenTest : public testing::TestWithParam<AdapterCase> {
 protected:
  void SetUp() override {
    golden_ = OpenGolden("lora/" + GetParam().golden);
    const auto path =
        MakeTestModel(golden_.header.metadata.at("model"), OptionsOf(golden_), directory_);
    LoadOptions options;
    options.max_tokens = 512;
    options.num_threads = 2;
    auto model = LoadModel(DescribeModel(path.string()).value(), options);
    ASSERT_TRUE(model.ok()) << model.error().message;
    model_ = std::move(model).value();
    auto adapter = Adapter::Load(
        std::filesystem::path(LAPIDARY_SOURCE_DIR) / "tests/goldens/lora" / GetParam().adapter,
        model_.description.plan);
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    adapter_ = *adapter;
  }

  std::vector<float> Logits(std::shared_ptr<const Adapter> adapter) {
    std::vector<float> logits;
    SingleSequence sequence(*model_.executor, /*max_chunk=*/17, /*sampling=*/nullptr,
                            /*prompt_len=*/0, /*media=*/nullptr, std::move(adapter));
    const Status status =
        sequence.Append(golden_.Ids("ids"), [&](std::span<const float> rows) -> Status {
          logits.insert(logits.end(), rows.begin(), rows.end());
          return {};
        });
    CHECK(status.ok()) << status.error().message;
    return logits;
  }

  // Largest difference from the reference, as a part of its largest logit.
  double Error(const std::vector<float>& logits) const {
    const TensorView expected = golden_.Tensor("logits");
    CHECK_EQ(std::ssize(logits), expected.num_elements());
    double largest = 0.0;
    double worst = 0.0;
    for (size_t idx = 0; idx < logits.size(); ++idx) {
      const double reference = expected.As<float>()[idx];
      largest = std::max(largest, std::abs(reference));
      worst = std::max(worst, std::abs(logits[idx] - reference));
    }
    return worst / largest;
  }

  TemporaryDirectory directory_;
  Golden golden_;
  LoadedModel model_;
  std::shared_ptr<const Adapter> adapter_;
};

TEST_P(AdapterGoldenTest, EveryModuleIsApplied) {
  EXPECT_EQ(adapter_->num_applied(), GetParam().num_applied) << adapter_->Summary();
  EXPECT_EQ(adapter_->num_ignored(), GetParam().num_ignored) << adapter_->Summary();
}

TEST_P(AdapterGoldenTest, LogitsArePeftsAtEveryPosition) {
  const double error = Error(Logits(adapter_));
  EXPECT_LE(error, kLogitTolerance);
  RecordProperty("relative_error", std::to_string(error));
  // The model alone says something else, before and after.
  EXPECT_GT(Error(Logits(nullptr)), 0.05);
}

INSTANTIATE_TEST_SUITE_P(Files, AdapterGoldenTest,
                         testing::Values(AdapterCase{"e-all-linear", "e-all-linear", 74},
                                         AdapterCase{"moe-all", "moe-all", 58},
                                         AdapterCase{"experts", "experts", 14},
                                         AdapterCase{"experts-each", "experts", 126},
                                         AdapterCase{"experts-old", "experts", 14},
                                         AdapterCase{"experts-down", "experts-down", 7},
                                         AdapterCase{"patterns", "patterns", 33},
                                         AdapterCase{"wrapper-regex", "wrapper-regex", 40},
                                         AdapterCase{"unsloth-regex", "unsloth-regex", 49},
                                         AdapterCase{"rank-256", "rank-256", 2},
                                         AdapterCase{"shared-kv", "shared-kv", 42},
                                         AdapterCase{"shared-kv-unread", "shared-kv", 42, 2}),
                         [](const testing::TestParamInfo<AdapterCase>& file) {
                           std::string name = file.param.adapter;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace lapidary
