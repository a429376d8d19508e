// One round of drafts against transformers' assistant in float32 (tools/make_goldens.py drafts).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/single_sequence.h"
#include "load/load_model.h"
#include "model/assistant_preset.h"
#include "model/presets.h"
#include "tests/golden_file.h"
#include "tests/test_models.h"

namespace lapidary {
namespace {

constexpr double kLogitTolerance = 1e-4;  // of the largest logit

class DraftGoldenTest : public testing::TestWithParam<std::string> {};

TEST_P(DraftGoldenTest, ARoundIsTheReferencesOnAnyNumberOfRanks) {
  const std::string name = GetParam();
  const Golden golden = OpenGolden(name + "-drafts");
  const SynthOptions synth = OptionsOf(golden);
  TemporaryDirectory directory;
  const auto path = MakeTestModel(name, synth, directory);
  ThreadPool threads(2);
  const Json assistant =
      IsPreset(name) ? AssistantPresetConfig(name).value()
                     : TinyAssistantConfig(TestConfig(name), name == "odd-shared-kv-is-v").value();
  ASSERT_TRUE(
      WriteSyntheticAssistant(assistant, synth, path.string() + "-assistant", threads).ok());
  const auto greedy = std::make_shared<SamplingParams>(SamplingParams{.temperature = 0.0f});
  for (const auto& [num_ranks, prompt] : std::vector<std::pair<int, std::string>>{
           {1, "short"}, {1, "long"}, {2, "short"}, {2, "long"}, {4, "long"}}) {
    LoadOptions options;
    options.max_tokens = 512;
    options.num_threads = 2;
    options.num_ranks = num_ranks;
    auto model = LoadModel(DescribeModel(path.string()).value(), options);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const std::vector<int32_t> ids = golden.Ids(prompt + ".ids");
    SingleSequence sequence(*model->executor, /*max_chunk=*/64, greedy,
                            static_cast<int32_t>(ids.size()));
    EXPECT_EQ(sequence.AppendAndSample(ids)->id, golden.Ids(prompt + ".next")[0]);
    const std::vector<int32_t> expected_ids = golden.Ids(prompt + ".draft_ids");
    const auto round = sequence.DraftRound(static_cast<int32_t>(expected_ids.size()));
    ASSERT_TRUE(round.ok()) << round.error().message;
    EXPECT_EQ(round->draft_ids, expected_ids) << prompt;
    const TensorView expected = golden.Tensor(prompt + ".draft_logits");
    const float* reference = expected.As<float>();
    const size_t vocab_size = static_cast<size_t>(expected.shape[1]);
    ASSERT_EQ(static_cast<int64_t>(round->draft_logits.size()), expected.num_elements());
    for (size_t first = 0; first < round->draft_logits.size(); first += vocab_size) {
      // What an ordered head did not score is one below the least that it did.
      const float least = *std::min_element(reference + first, reference + first + vocab_size);
      double largest = 0.0, worst = 0.0;
      for (size_t at = first; at < first + vocab_size; ++at) {
        const float logit = round->draft_logits[at];
        largest = std::max<double>(largest, std::abs(reference[at]));
        if (std::isinf(logit)) {
          EXPECT_EQ(reference[at], least) << prompt << ": token " << at - first;
        } else {
          worst = std::max<double>(worst, std::abs(logit - reference[at]));
        }
      }
      EXPECT_LE(worst / largest, kLogitTolerance) << prompt << ": draft " << first / vocab_size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DraftGoldenTest,
                         testing::Values("tiny-e", "tiny-moe", "tiny-dense", "odd-window",
                                         "odd-shared-kv-is-v", "odd-unified"),
                         ModelTestName);

}  // namespace
}  // namespace lapidary
