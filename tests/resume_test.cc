// An answer that was cut anywhere and goes on elsewhere is the answer that was not cut: the same
// tokens and logprobs, bit for bit, greedy or sampled, whatever the modes of the two engines.
#include "tests/drafted_answers.h"

namespace lapidary {
namespace {

class ResumeTest : public DraftedAnswersTest {
 protected:
  ResumeTest() : DraftedAnswersTest({}) {}

  // The request of `spec` that goes on behind the first tokens of its answer.
  static SequenceSpec Cut(SequenceSpec spec, const Answer& whole, size_t num_tokens) {
    spec.generated.clear();
    for (size_t idx = 0; idx < num_tokens; ++idx) spec.generated.push_back(whole.tokens[idx].id);
    return spec;
  }

  // Each answer is cut behind every `stride`th of its tokens.
  static void ExpectToGoOn(Engine& engine, const std::vector<SequenceSpec>& specs,
                           const std::vector<Answer>& whole, size_t stride,
                           const std::string& mode) {
    std::vector<SequenceSpec> cut;
    std::vector<Answer> expected;
    for (size_t idx = 0; idx < specs.size(); ++idx) {
      for (size_t at = 1 + idx % stride; at < whole[idx].tokens.size(); at += stride) {
        cut.push_back(Cut(specs[idx], whole[idx], at));
        expected.push_back(whole[idx]);
        std::vector<SampledToken>& tokens = expected.back().tokens;
        tokens.erase(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(at));
      }
    }
    const std::vector<Answer> actual = Run(engine, cut);
    ExpectSame(expected, actual, mode);
    for (size_t idx = 0; idx < cut.size(); ++idx) {
      const auto num_given = static_cast<int32_t>(cut[idx].generated.size());
      EXPECT_EQ(actual[idx].usage.given_tokens, num_given);
      EXPECT_EQ(actual[idx].usage.output_tokens, num_given + std::ssize(actual[idx].tokens));
    }
  }
};

TEST_P(ResumeTest, ASampledStreamCutAtEveryTokenGoesOnTheSame) {
  SequenceSpec spec = Specs()[1];
  spec.max_new_tokens = 200;
  spec.stop_ids.clear();
  SamplingParams sampling;
  sampling.temperature = 1.0f;
  sampling.seed = 20'261;
  spec.sampling = std::make_shared<SamplingParams>(sampling);
  const std::vector<Answer> whole = Run(*Load({.name = "plain"}), {spec});
  ASSERT_EQ(whole[0].tokens.size(), 200u);
  ExpectToGoOn(*Load({.name = "elsewhere"}), {spec}, whole, 1, "at each of 1 to 199");
}

TEST_P(ResumeTest, AnswersOfEverySortCutAnywhereGoOnTheSame) {
  const std::vector<SequenceSpec> specs = Specs();
  const std::vector<Answer> whole = Run(*Load({.name = "plain", .overlap = false}), specs);
  ExpectInGrammar(specs, whole);
  ExpectToGoOn(*Load({.name = "plain"}), specs, whole, 1, "plain");
  for (const Mode& mode : Modes()) ExpectToGoOn(*Load(mode), specs, whole, 5, mode.name);
}

// Models that see.
class ResumeMediaTest : public ResumeTest {};

TEST_P(ResumeMediaTest, AnswersBehindImagesGoOnTheSame) {
  const ModelPlan plan = DescribeModel(path_.string())->plan;
  ASSERT_TRUE(plan.media_tokens.has_value());
  std::vector<SequenceSpec> specs;
  for (const SequenceSpec& spec : Specs()) {
    if (spec.prompt.size() >= 54) specs.push_back(BehindAnImage(spec, plan));
  }
  const std::vector<Answer> whole = Run(*Load({.name = "plain"}), specs);
  const Mode small = {.name = "drafted, in small chunks",
                      .num_drafts = 3,
                      .max_num_batched_tokens = 41,
                      .prefix_caching = true};
  for (const Mode& mode : {Mode{.name = "plain"}, small}) {
    ExpectToGoOn(*Load(mode), specs, whole, 3, mode.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ResumeMediaTest, testing::Values("pebble-e"), ModelTestName);
INSTANTIATE_TEST_SUITE_P(Models, ResumeTest,
                         testing::Values("pebble-e", "pebble-moe", "tiny-e", "odd-window"),
                         ModelTestName);

}  // namespace
}  // namespace lapidary
