// Drafting on the GPU: the reference's rounds, the tokens of plain decoding, the CPU's acceptance.
#include <algorithm>
#include <array>
#include <cmath>

#include "engine/single_sequence.h"
#include "ops/cuda/test_buffer.h"
#include "tests/drafted_answers.h"
#include "tests/golden_file.h"

namespace lapidary {
namespace {

const DeviceChoice kGpu = {.kind = DeviceKind::kCuda, .gpu_ordinal = 0, .reason = {}};

class CudaDraftGoldenTest : public testing::TestWithParam<std::string> {};

struct RowComparison {
  double error = 0.0;         // |a - b| / |b| over the tokens that both heads have scored
  double common_share = 0.0;  // of those that the reference's has
};

// The reference gives all tokens that it has not scored one logit, below the others.
RowComparison CompareRows(const float* actual, const float* expected, size_t count) {
  const float lowest = *std::min_element(expected, expected + count);
  const bool leaves_out = std::count(expected, expected + count, lowest) > 1;
  double error = 0.0;
  double norm = 0.0;
  int num_scored = 0;
  int num_common = 0;
  for (size_t idx = 0; idx < count; ++idx) {
    if (leaves_out && expected[idx] == lowest) continue;
    ++num_scored;
    if (!std::isfinite(actual[idx])) continue;
    ++num_common;
    error += std::pow(double{actual[idx]} - expected[idx], 2);
    norm += std::pow(double{expected[idx]}, 2);
  }
  return {std::sqrt(error / norm), double(num_common) / num_scored};
}

TEST_P(CudaDraftGoldenTest, ARoundIsTheReferencesWithinBf16) {
  LAPIDARY_SKIP_WITHOUT_GPU();
  const std::string name = GetParam();
  const Golden golden = OpenGolden(name + "-drafts");
  const SynthOptions synth = OptionsOf(golden);
  TemporaryDirectory directory;
  const auto path = MakeTestModel(name, synth, directory);
  ThreadPool threads(2);
  ASSERT_TRUE(WriteSyntheticAssistant(AssistantPresetConfig(name).value(), synth,
                                      path.string() + "-assistant", threads)
                  .ok());
  LoadOptions options;
  options.max_tokens = 512;
  options.device = kGpu;
  auto model = LoadModel(DescribeModel(path.string()).value(), options);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const auto greedy = std::make_shared<SamplingParams>(SamplingParams{.temperature = 0.0f});
  for (const std::string prompt : {"short", "long"}) {
    const std::vector<int32_t> ids = golden.Ids(prompt + ".ids");
    const std::vector<int32_t> expected_ids = golden.Ids(prompt + ".draft_ids");
    SingleSequence sequence(*model->executor, /*max_chunk=*/64, greedy,
                            static_cast<int32_t>(ids.size()));
    EXPECT_EQ(sequence.AppendAndSample(ids)->id, golden.Ids(prompt + ".next")[0]);
    const auto round = sequence.DraftRound(static_cast<int32_t>(expected_ids.size()));
    ASSERT_TRUE(round.ok()) << round.error().message;
    const TensorView expected = golden.Tensor(prompt + ".draft_logits");
    const size_t vocab_size = static_cast<size_t>(expected.shape[1]);
    ASSERT_EQ(static_cast<int64_t>(round->draft_logits.size()), expected.num_elements());
    // Behind a draft that is another one, all others are too.
    size_t num_alike = 0;
    for (size_t draft = 0; draft < expected_ids.size(); ++draft) {
      const float* actual = round->draft_logits.data() + draft * vocab_size;
      const float* reference = expected.As<float>() + draft * vocab_size;
      // Of the tiny models' own logits, bf16 moves as much.
      const RowComparison row = CompareRows(actual, reference, vocab_size);
      EXPECT_LE(row.error, 0.12) << prompt << ": draft " << draft;
      // Of four clusters that are scored one may be another, where two are nearly as near.
      EXPECT_GE(row.common_share, 0.75) << prompt << ": draft " << draft;
      if (round->draft_ids[draft] != expected_ids[draft]) break;
      ++num_alike;
    }
    EXPECT_GE(num_alike, 1u) << prompt;
  }
}

// Not tiny-moe: bf16 changes its choice of experts, and with it the whole row.
INSTANTIATE_TEST_SUITE_P(Models, CudaDraftGoldenTest, testing::Values("tiny-e", "tiny-dense"),
                         ModelTestName);

class CudaDraftingTest : public DraftedAnswersTest {
 protected:
  CudaDraftingTest() : DraftedAnswersTest(kGpu) {}
  void SetUp() override {
    LAPIDARY_SKIP_WITHOUT_GPU();
    DraftedAnswersTest::SetUp();
  }
};

TEST_P(CudaDraftingTest, AnswersAreTheSameBitsInEveryMode) { ExpectTheSameInEveryMode(); }

TEST_P(CudaDraftingTest, AnswersBehindImagesAreTheSameWithDrafts) { ExpectTheSameBehindImages(); }

TEST_P(CudaDraftingTest, RequestsThatFailInAStepLeaveTheOthersAlone) {
  ExpectFailuresLeaveOthersAlone();
}

// Of trained pairs: those of random ones are near-ties, which bf16 turns.
class CudaTrainedDrafterTest : public CudaDraftingTest {};

TEST_P(CudaTrainedDrafterTest, ProposesTheCpuDraftersTokens) {
  const std::vector<SequenceSpec> specs = Specs();
  const auto greedy = std::make_shared<SamplingParams>(SamplingParams{.temperature = 0.0f});
  int num_drafts = 0;
  int num_alike = 0;
  LoadOptions options;
  options.max_tokens = 512;
  options.num_threads = 2;
  const ModelDescription model = DescribeModel(path_.string()).value();
  auto on_cpu = LoadModel(model, options);
  options.device = kGpu;
  auto on_gpu = LoadModel(model, options);
  ASSERT_TRUE(on_cpu.ok() && on_gpu.ok());
  for (const SequenceSpec& spec : specs) {
    std::array<std::vector<int32_t>, 2> drafts;
    std::array<int32_t, 2> next{};
    for (const bool is_gpu : {false, true}) {
      SingleSequence sequence(*(is_gpu ? on_gpu : on_cpu)->executor, 64, greedy,
                              static_cast<int32_t>(spec.prompt.size()));
      next[is_gpu] = sequence.AppendAndSample(spec.prompt)->id;
      drafts[is_gpu] = sequence.DraftRound(4)->draft_ids;
    }
    if (next[0] != next[1]) continue;
    // Behind a draft that is another one, all others are too.
    for (size_t idx = 0; idx < drafts[0].size(); ++idx) {
      ++num_drafts;
      if (drafts[0][idx] != drafts[1][idx]) break;
      ++num_alike;
    }
  }
  EXPECT_GE(num_drafts, 16);
  EXPECT_GE(num_alike, num_drafts * 3 / 4) << num_alike << " of " << num_drafts;
}

INSTANTIATE_TEST_SUITE_P(Models, CudaDraftingTest,
                         testing::Values("pebble-e", "pebble-moe", "pebble-dense", "tiny-e",
                                         "tiny-moe", "tiny-dense"),
                         ModelTestName);

INSTANTIATE_TEST_SUITE_P(Models, CudaTrainedDrafterTest,
                         testing::Values("pebble-e", "pebble-moe", "pebble-dense"), ModelTestName);

}  // namespace
}  // namespace lapidary
