// The CPU executor against transformers in float32 (tools/make_goldens.py), on the same
// checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/single_sequence.h"
#include "load/load_model.h"
#include "tests/golden_file.h"
#include "tests/test_models.h"

namespace lapidary {
namespace {

constexpr double kLogitTolerance = 1e-4;  // of the largest logit

struct GoldenCase {
  std::string model;
  int num_ranks = 1;
};

class GoldenTest : public testing::TestWithParam<GoldenCase> {
 protected:
  void SetUp() override {
    golden_ = OpenGolden(GetParam().model);
    const auto path = MakeTestModel(GetParam().model, OptionsOf(golden_), directory_);
    LoadOptions options;
    options.max_tokens = 512;
    options.num_threads = 2;
    options.num_ranks = GetParam().num_ranks;
    auto model = LoadModel(DescribeModel(path.string()).value(), options);
    ASSERT_TRUE(model.ok()) << model.error().message;
    model_ = std::move(model).value();
  }

  TemporaryDirectory directory_;
  Golden golden_;
  LoadedModel model_;
};

TEST_P(GoldenTest, LogitsMatchTheReferenceAtEveryPosition) {
  const int64_t vocab = model_.description.plan.vocab_size;
  for (const std::string prompt : {"short", "long"}) {
    const std::vector<int32_t> ids = golden_.Ids(prompt + ".ids");
    const TensorView expected = golden_.Tensor(prompt + ".logits");
    ASSERT_EQ(expected.shape, (std::vector<int64_t>{static_cast<int64_t>(ids.size()), vocab}));
    std::vector<float> logits;
    SingleSequence sequence(*model_.executor, /*max_chunk=*/64);
    const Status status = sequence.Append(ids, [&](std::span<const float> rows) -> Status {
      logits.insert(logits.end(), rows.begin(), rows.end());
      return {};
    });
    ASSERT_TRUE(status.ok()) << status.error().message;
    ASSERT_EQ(static_cast<int64_t>(logits.size()), expected.num_elements());

    double largest = 0.0;
    double worst = 0.0;
    size_t worst_at = 0;
    for (size_t idx = 0; idx < logits.size(); ++idx) {
      const double reference = expected.As<float>()[idx];
      const double error = std::abs(logits[idx] - reference);
      ASSERT_TRUE(std::isfinite(logits[idx])) << "position " << idx / vocab;
      largest = std::max(largest, std::abs(reference));
      if (error > worst) {
        worst = error;
        worst_at = idx;
      }
    }
    EXPECT_LE(worst / largest, kLogitTolerance)
        << prompt << ": position " << worst_at / vocab << " token " << worst_at % vocab << ": "
        << logits[worst_at] << " vs " << expected.As<float>()[worst_at];
    RecordProperty(prompt + "_relative_error", std::to_string(worst / largest));
  }
}

TEST_P(GoldenTest, GreedyContinuationIsTheReferences) {
  const auto params = std::make_shared<SamplingParams>(SamplingParams{.temperature = 0.0f});
  for (const std::string prompt : {"short", "long"}) {
    const std::vector<int32_t> expected = golden_.Ids(prompt + ".greedy");
    std::vector<int32_t> next = golden_.Ids(prompt + ".ids");
    std::vector<int32_t> output;
    SingleSequence sequence(*model_.executor, /*max_chunk=*/512, params,
                            static_cast<int32_t>(next.size()));
    while (output.size() < expected.size()) {
      const auto token = sequence.AppendAndSample(next);
      ASSERT_TRUE(token.ok()) << token.error().message;
      output.push_back(token->id);
      next = {token->id};
    }
    EXPECT_EQ(output, expected) << prompt;
  }
}

std::vector<GoldenCase> AllCases() {
  std::vector<GoldenCase> cases;
  for (const char* model : {"tiny-e", "tiny-moe", "tiny-dense", "odd-single-kv", "odd-window",
                            "odd-wrapper", "odd-shared-kv-is-v", "odd-moe", "odd-unified"}) {
    for (const int num_ranks : {1, 2, 4}) cases.push_back({model, num_ranks});
  }
  return cases;
}

std::string CaseName(const testing::TestParamInfo<GoldenCase>& golden) {
  std::string name = golden.param.model;
  std::replace(name.begin(), name.end(), '-', '_');
  if (golden.param.num_ranks > 1) name += fmt::format("_{}_ranks", golden.param.num_ranks);
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, testing::ValuesIn(AllCases()), CaseName);

}  // namespace
}  // namespace lapidary
