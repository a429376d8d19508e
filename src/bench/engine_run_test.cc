#include "bench/engine_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>

#include "engine/fake_executor.h"
#include "model/presets.h"

namespace lapidary::bench {
namespace {

using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;

EngineRun RunOf(int num_requests, std::vector<TokenEvent> events) {
  EngineRun run;
  run.submitted.resize(num_requests);
  run.events = std::move(events);
  return run;
}

std::vector<double> Seconds(const EngineRun& run) {
  std::vector<double> seconds;
  for (const DecodeStep& step : DecodeSteps(run)) seconds.push_back(step.seconds);
  return seconds;
}

TEST(DecodeSteps, AreTheGapsOfOneRequestAfterItsFirstToken) {
  const EngineRun run = RunOf(1, {{5.0, 0, 1}, {5.5, 0, 1}, {6.5, 0, 1}});
  EXPECT_THAT(Seconds(run), ElementsAre(0.5, 1.0));
  EXPECT_THAT(FirstTokenSeconds(run), ElementsAre(5.0));
}

// Tokens that come with the first are not waited for; an answer of one event has no time a token.
TEST(TokenSeconds, AreOfTheTokensAfterTheFirstEvent) {
  const EngineRun run =
      RunOf(3, {{5.0, 0, 1}, {5.0, 1, 2}, {5.5, 0, 3}, {6.0, 1, 1}, {6.5, 0, 1}, {6.5, 2, 4}});
  EXPECT_THAT(TokenSeconds(run), ElementsAre(1.5 / 4, 1.0));
}

// Request 1's prompt takes three more steps, in which request 0 decodes already; request 0 ends
// first.
TEST(DecodeSteps, LeaveOutStepsWithPromptsAndStepsOfFewer) {
  const EngineRun run = RunOf(2, {{1.0, 0, 1},
                                  {2.0, 0, 1},
                                  {3.0, 0, 1},
                                  {3.0, 1, 1},  // its first token: the step held its prompt
                                  {3.1, 0, 1},
                                  {3.1, 1, 1},
                                  {3.3, 0, 1},
                                  {3.3, 1, 1},
                                  {3.4, 1, 1},
                                  {3.5, 1, 1}});
  EXPECT_THAT(Seconds(run), ElementsAre(DoubleNear(0.1, 1e-9), DoubleNear(0.2, 1e-9)));
}

TEST(DecodeSteps, CountAcceptedDrafts) {
  const auto steps = DecodeSteps(RunOf(2, {{1.0, 0, 1}, {1.0, 1, 1}, {2.0, 0, 3}, {2.0, 1, 2}}));
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].tokens_per_request, 2.5);
}

TEST(DecodeSteps, OfNothingAreNone) { EXPECT_TRUE(DecodeSteps(RunOf(2, {})).empty()); }

// A device that works off its steps one behind the other: 100 ms for one with prompt tokens, else
// 10, by a clock that moves when somebody waits for it. Submit may also wait for it, as with
// --cuda-launch-blocking.
class TimedExecutor final : public FakeExecutor {
 public:
  TimedExecutor(const ModelPlan& plan, bool is_blocking, std::atomic<double>& now)
      : FakeExecutor(plan, MakeKvLayout(plan, KvFormat::kF32, {4, 8}), /*num_pages=*/256),
        is_blocking_(is_blocking),
        now_(now) {}

  void Submit(StepBatch batch) override {
    const bool is_decode = batch.token_ids.size() == batch.sequences.size();
    idle_at_ = std::max(idle_at_, now_.load()) + (is_decode ? 0.010 : 0.100);
    ends_.push_back(idle_at_);
    if (is_blocking_) WaitUntil(idle_at_);
    FakeExecutor::Submit(std::move(batch));
  }

  StepOutput Collect() override {
    WaitUntil(ends_.front());
    ends_.pop_front();
    return FakeExecutor::Collect();
  }

 private:
  void WaitUntil(double end) { now_ = std::max(now_.load(), end); }

  const bool is_blocking_;
  std::atomic<double>& now_;
  double idle_at_ = 0.0;
  std::deque<double> ends_;
};

// Two steps are in flight: the next one is submitted before this one's tokens are there.
TEST(DecodeSteps, HaveTheDevicesTimeWhenStepsOverlap) {
  const ModelPlan plan =
      MakeModelPlan(ParseModelConfig(*PresetConfig("tiny-e"), "tiny-e").value()).value();
  for (const bool is_blocking : {false, true}) {
    EngineOptions options;
    options.limits.max_num_batched_tokens = 8;  // The prompt takes two steps.
    ASSERT_TRUE(options.overlap);
    std::atomic<double> now = 0.0;
    Session session(
        std::make_unique<Engine>(std::make_unique<TimedExecutor>(plan, is_blocking, now), options),
        std::make_shared<const TextModel>(TextModel::None("tiny-e")));
    RandomPromptOptions prompts;
    prompts.num_prompts = 1;
    prompts.input_len = 14;
    prompts.output_len = 24;
    prompts.vocab_size = plan.vocab_size;
    const auto run = RunOnEngine(session, MakeRandomPrompts(prompts).value(),
                                 {.now = [&] { return now.load(); }});
    ASSERT_TRUE(run.ok()) << run.error().message;
    EXPECT_NEAR(run->duration_s, 2 * 0.100 + 23 * 0.010, 1e-9);
    std::vector<double> seconds = Seconds(*run);
    ASSERT_EQ(seconds.size(), 23u);  // all but the steps with prompt tokens
    // Nothing comes behind the last step: whoever waits in Submit sees its end with the one before.
    if (is_blocking) seconds.pop_back();
    EXPECT_THAT(seconds, Each(DoubleNear(0.010, 1e-9)));
  }
}

class EngineRunTest : public testing::Test {
 protected:
  void SetUp() override {
    SessionOptions options;
    options.load.format = LoadFormat::kDummy;
    options.load.num_threads = 1;
    options.load.max_tokens = 64;
    options.load.num_sequences = 4;
    auto loaded = Session::Load(ModelFiles::Open("tiny-e").value(), options);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    session_ = std::move(*loaded);
  }

  std::vector<BenchPrompt> Prompts(int num_prompts, int input_len, int output_len) {
    RandomPromptOptions options;
    options.num_prompts = num_prompts;
    options.input_len = input_len;
    options.output_len = output_len;
    options.vocab_size = session_->plan().vocab_size;
    return MakeRandomPrompts(options).value();
  }

  std::unique_ptr<Session> session_;
};

TEST_F(EngineRunTest, EveryPromptRunsToItsLength) {
  EngineRunOptions options;
  options.max_open = 3;
  std::atomic<int> num_finished = 0;
  options.on_finished = [&] { ++num_finished; };
  const auto run = RunOnEngine(*session_, Prompts(10, 12, 9), options);
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_EQ(run->num_output_tokens, 90);
  EXPECT_EQ(num_finished, 10);
  for (const double seconds : FirstTokenSeconds(*run)) EXPECT_GE(seconds, 0.0);
}

TEST_F(EngineRunTest, ABatchDecodesTogether) {
  const auto run = RunOnEngine(*session_, Prompts(4, 8, 20));
  ASSERT_TRUE(run.ok()) << run.error().message;
  const auto steps = DecodeSteps(*run);
  EXPECT_GE(steps.size(), 10u);
  EXPECT_LE(steps.size(), 19u);
}

TEST_F(EngineRunTest, WhatDoesNotFitIsAnError) {
  EXPECT_FALSE(RunOnEngine(*session_, Prompts(1, 5000, 10)).ok());
}

TEST_F(EngineRunTest, NothingGoesOnAfterARefusal) {
  std::vector<BenchPrompt> prompts = Prompts(3, 8, 40);
  prompts.push_back(Prompts(1, 5000, 10)[0]);
  EngineRunOptions options;
  std::atomic<int> num_finished = 0;
  options.on_finished = [&] { ++num_finished; };
  EXPECT_FALSE(RunOnEngine(*session_, prompts, options).ok());
  EXPECT_EQ(num_finished, 3);
  EXPECT_EQ(session_->engine().stats().scheduler.num_running, 0);
}

}  // namespace
}  // namespace lapidary::bench
