// Servers with 100 clients, in simulated time against what was measured on the card.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "fleet/replica.h"

namespace lapidary::fleet {
namespace {

struct MeasuredServer {
  const char* preset;
  double memory_share;
  std::array<double, 2> tokens_per_s;  // of answers: docs/performance.md, and the best run
};
// One H200, 100 clients, 200 prompts of 512 random tokens, answers of 512.
constexpr MeasuredServer kServers[] = {
    {"e2b", 0.9, {24'675, 25'400}},   {"e4b", 0.9, {13'920, 14'400}}, {"12b", 0.9, {5'136, 5'345}},
    {"26b-a4b", 0.9, {5'129, 5'274}}, {"31b", 0.97, {2'091, 2'112}},
};

double TokensPerSecond(const ReplicaModel& model) {
  constexpr int kClients = 100;
  constexpr int kPrompts = 200;
  constexpr int kTokens = 512;
  Replica replica(model, 1);
  std::mt19937 random(1);
  const auto spec = [&](int prompt_len, int answer_len) {
    SequenceSpec made;
    for (int idx = 0; idx < prompt_len; ++idx) {
      made.prompt.push_back(static_cast<int32_t>(random() % 2000));
    }
    made.max_new_tokens = answer_len;
    made.sampling = std::make_shared<SamplingParams>();
    return made;
  };
  // A server's own first request, which says what a step costs.
  EXPECT_TRUE(replica.Add(0.0, spec(1, 2)).ok());
  double now_ms = 0.0;
  const auto end_step = [&] {
    now_ms = *replica.next_end_ms();
    return replica.EndStep();
  };
  while (replica.next_end_ms()) end_step();
  const double start_ms = now_ms;
  int num_asked = 0;
  const auto ask = [&] {
    EXPECT_TRUE(replica.Add(now_ms, spec(kTokens, kTokens)).ok());
    ++num_asked;
  };
  while (num_asked < kClients) ask();
  int64_t num_tokens = 0;
  while (replica.next_end_ms()) {
    for (const SequenceProgress& progress : end_step()) {
      num_tokens += std::ssize(progress.tokens);
      if (progress.finish && num_asked < kPrompts) ask();
    }
  }
  EXPECT_EQ(num_tokens, int64_t{kPrompts} * kTokens);
  return 1e3 * static_cast<double>(num_tokens) / (now_ms - start_ms);
}

TEST(SimulatedThroughput, AHundredClientsGetWhatTheyGotOnTheCard) {
  for (const MeasuredServer& server : kServers) {
    const auto model =
        MakeReplicaModel(server.preset, **simulated::FindCard("h200"),
                         {.max_num_seqs = 128, .max_num_batched_tokens = 0, .max_model_len = 2048},
                         server.memory_share);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const double tokens_per_s = TokensPerSecond(*model);
    RecordProperty(server.preset, std::to_string(tokens_per_s));
    for (const double measured : server.tokens_per_s) {
      EXPECT_NEAR(tokens_per_s / measured, 1.0, 0.05)
          << server.preset << ": " << tokens_per_s << " of " << measured;
    }
  }
}

}  // namespace
}  // namespace lapidary::fleet
