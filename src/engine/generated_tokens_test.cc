#include "engine/generated_tokens.h"

#include <gtest/gtest.h>

#include <future>

#include "engine/engine.h"
#include "engine/scheduler_harness.h"
#include "grammar/constraint.h"
#include "grammar/matcher.h"

namespace lapidary {
namespace {

SequenceSpec Resumed(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer,
                     size_t num_generated) {
  SequenceSpec spec = Harness::Spec(prompt, static_cast<int>(answer.size()));
  spec.generated = {answer.begin(), answer.begin() + static_cast<ptrdiff_t>(num_generated)};
  return spec;
}

// Small pools, so that what goes on is preempted too.
TEST(GeneratedTokens, SequencesGoOnBehindThemAlone) {
  for (const bool overlap : {false, true}) {
    for (const int num_drafts : {0, 3}) {
      SchedulerLimits limits;
      limits.num_drafts = num_drafts;
      limits.max_num_batched_tokens = 40;
      Harness harness(/*num_pages=*/100, limits, overlap);
      std::mt19937 random(17);
      std::map<SequenceId, std::vector<int32_t>> expected;
      for (int idx = 0; idx < 120; ++idx) {
        const auto prompt =
            RandomIds(random, 1 + static_cast<int>(random() % 40), harness.vocab_size());
        const auto answer = FakeExecutor::Continuation(prompt, 2 + static_cast<int>(random() % 60),
                                                       harness.vocab_size());
        const size_t num_generated = 1 + random() % (answer.size() - 1);
        const SequenceId id = harness.Add(Resumed(prompt, answer, num_generated)).value();
        expected[id] = {answer.begin() + static_cast<ptrdiff_t>(num_generated), answer.end()};
        for (int turn = 0; turn < 3; ++turn) harness.Turn();
      }
      harness.RunToEnd();
      EXPECT_EQ(harness.outputs_, expected);
      EXPECT_GT(harness.scheduler().stats().num_preemptions, 0u);
      harness.scheduler().CheckIntegrity();
    }
  }
}

TEST(GeneratedTokens, NoneOfThemIsOfThePrompt) {
  Harness harness(200, {}, /*overlap=*/true);
  std::mt19937 random(18);
  const auto prompt = RandomIds(random, 50, harness.vocab_size());
  const auto answer = FakeExecutor::Continuation(prompt, 40, harness.vocab_size());
  harness.Add(Resumed(prompt, answer, 30)).value();
  harness.RunToEnd();
  EXPECT_EQ(harness.scheduler().stats().num_prompt_tokens, 50u);
  harness.Add(Resumed(prompt, answer, 35)).value();
  harness.RunToEnd();
  EXPECT_EQ(harness.scheduler().stats().num_prompt_tokens, 100u);
  EXPECT_LE(harness.scheduler().stats().num_prefix_hit_tokens, 50u);
  EXPECT_GT(harness.scheduler().stats().num_prefix_hit_tokens, 0u);
}

TEST(GeneratedTokens, ThoseThatCouldNotComeAreRefusedWithTheReason) {
  Harness harness(200, {}, /*overlap=*/true);
  SamplingParams sampling;
  sampling.allowed_tokens = {5, 6, 7, 8};
  sampling.suppress_tokens = {8};
  const auto refusal = [&](std::vector<int32_t> generated, auto... changes) -> std::string {
    SequenceSpec spec = Harness::Spec({1, 2, 3}, 4);
    spec.sampling = std::make_shared<SamplingParams>(sampling);
    spec.stop_ids = {7};
    spec.generated = std::move(generated);
    (changes(spec), ...);
    const auto added = harness.Add(std::move(spec));
    return added.ok() ? "" : added.error().message;
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({5, 6, 5}), "");
  EXPECT_NE(refusal({5, 6, 5, 6}).find("at most 4 tokens does not go on behind 4"),
            std::string::npos);
  EXPECT_NE(refusal({5, -1}).find("token 1 has the id -1, outside"), std::string::npos);
  EXPECT_NE(refusal({5, 1 << 20}).find("outside the vocabulary"), std::string::npos);
  EXPECT_NE(refusal({7}).find("token 0 (7) stops the answer"), std::string::npos);
  EXPECT_NE(refusal({5, 9}).find("token 1 (9) is none that may be generated"), std::string::npos);
  EXPECT_NE(refusal({8}).find("token 0 (8) is none that may be generated"), std::string::npos);
  EXPECT_NE(refusal({5}, [](SequenceSpec& spec) { spec.num_prompt_logprobs = 0; }).find("exclude"),
            std::string::npos);
  harness.RunToEnd();
}

TEST(GeneratedTokens, OneAnswerIsGoneOnWithAtATime) {
  const ModelPlan plan = TinyPlan();
  Engine engine(
      std::make_unique<FakeExecutor>(plan, MakeKvLayout(plan, KvFormat::kF32, {4, 8}), 200), {});
  SequenceSpec spec = Harness::Spec({1, 2, 3}, 4);
  spec.generated = {5};
  const auto refused = engine.Submit(spec, /*num_copies=*/2, [](const RequestEvent&) {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "resume: one answer can be gone on with, not 2");
}

TEST(GeneratedTokens, UsageCountsThemAndSaysHowManyThereWere) {
  const ModelPlan plan = TinyPlan();
  Engine engine(
      std::make_unique<FakeExecutor>(plan, MakeKvLayout(plan, KvFormat::kF32, {4, 8}), 200), {});
  const std::vector<int32_t> prompt = {1, 2, 3};
  const auto answer = FakeExecutor::Continuation(prompt, 20, plan.vocab_size);
  std::promise<RequestUsage> ended;
  ASSERT_TRUE(engine
                  .Submit(Resumed(prompt, answer, 12),
                          [&](const RequestEvent& event) {
                            if (event.finish) ended.set_value(event.usage);
                          })
                  .ok());
  const RequestUsage usage = ended.get_future().get();
  EXPECT_EQ(usage.prompt_tokens, 3);
  EXPECT_EQ(usage.output_tokens, 20);
  EXPECT_EQ(usage.given_tokens, 12);
  EXPECT_EQ(engine.stats().num_output_tokens, 8u);
}

TEST(GeneratedTokens, AGrammarReadsThemOrSaysWhichDoesNotFit) {
  std::vector<std::string> bytes = {"", "", "a", "b", "c"};
  const auto grammar = *grammar::Compile(
      {.kind = grammar::Constraint::Kind::kRegex, .text = "ab*c"},
      {.vocabulary = std::make_shared<grammar::TokenVocabulary>(bytes), .stop_tokens = {1}});
  const auto matcher = MatchGenerated(grammar, std::vector<int32_t>{2, 3, 3});
  ASSERT_TRUE(matcher.ok()) << matcher.error().message;
  EXPECT_EQ((*matcher)->num_accepted(), 3);
  const auto refused = MatchGenerated(grammar, std::vector<int32_t>{2, 3, 2});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "resume: token 2 (2) does not fit the answer's form or rules");
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalid);
  grammar::Work none(0);
  const auto unread = MatchGenerated(grammar, std::vector<int32_t>{2, 4}, &none);
  EXPECT_TRUE(unread.ok() || unread.error().kind == ErrorKind::kBusy);
}

}  // namespace
}  // namespace lapidary
