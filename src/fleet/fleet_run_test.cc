#include "fleet/fleet_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "model/presets.h"

namespace lapidary::fleet {
namespace {

// A toy's pages and a card's pace: so few pages that sequences are preempted.
ReplicaModel TinyModel(int num_pages) {
  ReplicaModel model;
  model.plan =
      MakeModelPlan(ParseModelConfig(PresetConfig("tiny-e").value(), "tiny-e").value()).value();
  model.layout = MakeKvLayout(model.plan, KvFormat::kBF16, {4, 8});
  model.num_pages = num_pages;
  model.timings.one_row = 1.0;
  model.timings.floor = 2.0;
  model.timings.prompt_row = 0.01;
  model.limits.max_num_batched_tokens = 64;
  model.limits.max_model_len = 400;
  return model;
}

SequenceSpec Spec(std::vector<int32_t> prompt, int num_new) {
  SequenceSpec spec;
  spec.cache_points = {static_cast<int32_t>(prompt.size()) - 1};
  spec.prompt = std::move(prompt);
  spec.max_new_tokens = num_new;
  spec.sampling = std::make_shared<SamplingParams>();
  return spec;
}

std::vector<int32_t> RandomPrompt(std::mt19937& random, int length) {
  std::vector<int32_t> prompt(length);
  for (int32_t& id : prompt) id = static_cast<int32_t>(random() % 200);
  return prompt;
}

std::map<SequenceId, std::vector<int32_t>> RunToEnd(Replica& replica) {
  std::map<SequenceId, std::vector<int32_t>> answers;
  while (replica.next_end_ms()) {
    for (const SequenceProgress& progress : replica.EndStep()) {
      for (const SampledToken& token : progress.tokens) {
        answers[progress.id].push_back(token.id);
      }
    }
  }
  return answers;
}

TEST(Replica, AnAnswerIsTheSameAloneInABatchPreemptedCachedAndResumedElsewhere) {
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> alone;
  for (int idx = 0; idx < 20; ++idx) {
    prompts.push_back(RandomPrompt(random, 20 + 7 * idx));
    const ReplicaModel model = TinyModel(400);
    Replica replica(model, 5);
    const SequenceId id = replica.Add(0.0, Spec(prompts.back(), 60)).value();
    alone.push_back(RunToEnd(replica)[id]);
  }
  const ReplicaModel model = TinyModel(150);
  Replica crowded(model, 6);
  for (const std::vector<int32_t>& prompt : prompts) {
    ASSERT_TRUE(crowded.Add(0.0, Spec(prompt, 60)).ok());
  }
  auto answers = RunToEnd(crowded);
  EXPECT_GT(crowded.stats().num_preemptions, 0u);
  for (size_t idx = 0; idx < prompts.size(); ++idx) EXPECT_EQ(answers[idx + 1], alone[idx]) << idx;
  // Twice more, one after the other: the second time the prompt is in the cache.
  for (size_t idx = 0; idx < prompts.size(); ++idx) {
    for (int time = 0; time < 2; ++time) {
      const SequenceId id = crowded.Add(0.0, Spec(prompts[idx], 60)).value();
      EXPECT_EQ(RunToEnd(crowded)[id], alone[idx]) << idx;
    }
  }
  EXPECT_GT(crowded.stats().num_prefix_hit_tokens, 0u);
  for (const size_t cut : {1u, 30u, 59u}) {
    Replica elsewhere(model, 7);
    SequenceSpec spec = Spec(prompts[4], 60);
    spec.generated.assign(alone[4].begin(), alone[4].begin() + static_cast<int64_t>(cut));
    const SequenceId id = elsewhere.Add(0.0, std::move(spec)).value();
    const std::vector<int32_t> rest(alone[4].begin() + static_cast<int64_t>(cut), alone[4].end());
    EXPECT_EQ(RunToEnd(elsewhere)[id], rest) << cut;
  }
}

std::vector<Conversation> SmallTrace() {
  std::vector<Conversation> trace;
  std::mt19937 random(9);
  for (int idx = 0; idx < 60; ++idx) {
    Conversation conversation;
    conversation.at_s = 0.01 * idx;
    conversation.system = idx % 3;
    conversation.num_system_tokens = 64;
    for (int turn = 0; turn < 3; ++turn) {
      conversation.turns.push_back({.num_tokens = 10 + static_cast<int32_t>(random() % 20),
                                    .num_answer_tokens = 20,
                                    .think_s = 0.2});
    }
    trace.push_back(conversation);
  }
  return trace;
}

FleetReport Play(std::string_view policy_name, int num_replicas) {
  const ReplicaModel model = TinyModel(600);
  const auto policy = MakePolicy(policy_name).value();
  return RunFleet(model, num_replicas, *policy, SmallTrace()).value();
}

TEST(Fleet, EveryTurnIsAnsweredWhole) {
  for (const std::string& policy : PolicyNames()) {
    const FleetReport report = Play(policy, 4);
    EXPECT_EQ(report.num_answers, 180) << policy;
    EXPECT_EQ(report.num_answer_tokens, 180 * 20) << policy;
    EXPECT_EQ(report.ttft_ms.size(), 180u) << policy;
    EXPECT_EQ(report.tpot_ms.size(), 180u) << policy;
    // A turn's first token takes a step at least, the others one each.
    EXPECT_GE(report.ttft_ms.front(), 0.999) << policy;
    EXPECT_GE(report.tpot_ms.front(), 0.999) << policy;
  }
}

TEST(Fleet, TheSameTraceGivesTheSameFigures) {
  const FleetReport first = Play("prefix", 4);
  const FleetReport second = Play("prefix", 4);
  EXPECT_EQ(first.ttft_ms, second.ttft_ms);
  EXPECT_EQ(first.tpot_ms, second.tpot_ms);
  EXPECT_EQ(first.num_hit_tokens, second.num_hit_tokens);
}

TEST(Fleet, ConversationsThatStayFindTheirPrefix) {
  const double round_robin = Play("round-robin", 7).hit_rate();
  const double prefix = Play("prefix", 7).hit_rate();
  EXPECT_GT(prefix, 0.7);
  EXPECT_LT(round_robin, 0.8 * prefix);
}

TEST(Fleet, AConversationBeyondTheContextIsRefused) {
  std::vector<Conversation> trace = SmallTrace();
  trace[5].turns[0].num_tokens = 1000;
  const ReplicaModel model = TinyModel(600);
  RoundRobin policy;
  const auto report = RunFleet(model, 2, policy, trace);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message, testing::HasSubstr("conversation 5"));
}

}  // namespace
}  // namespace lapidary::fleet
