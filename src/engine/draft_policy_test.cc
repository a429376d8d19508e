#include "engine/draft_policy.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace lapidary {
namespace {

// An engine whose steps cost what a law says and whose drafts are accepted at one rate.
struct Simulation {
  DraftPolicy policy{4, /*adapts=*/true};
  std::mt19937 random{5};
  double seconds = 0.0;
  double tokens = 0.0;

  void Run(int num_steps, int num_sequences, double rate,
           const std::function<double(int num_drafts)>& cost) {
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    for (int step = 0; step < num_steps; ++step) {
      const int num_drafts = policy.Choose(num_sequences);
      for (int idx = 0; idx < num_sequences; ++idx) {
        int num_accepted = 0;
        while (num_accepted < num_drafts && uniform(random) < rate) ++num_accepted;
        tokens += 1 + num_accepted;
        if (num_drafts > 0) policy.AddRound(num_drafts, num_accepted);
      }
      const double step_seconds = cost(num_drafts) * (0.98 + 0.04 * uniform(random));
      policy.AddStep(num_sequences, num_drafts, step_seconds);
      seconds += step_seconds;
    }
  }
  double rate() const { return tokens / seconds; }
};

double Expected(int num_drafts, double rate) {
  double length = 1.0;
  for (int idx = 0; idx < num_drafts; ++idx) length = 1.0 + rate * length;
  return length;
}

TEST(DraftPolicy, DraftsAllWhereRowsCostNothingAndDraftsAreGood) {
  Simulation simulation;
  simulation.Run(2000, 1, 0.8, [](int num_drafts) { return 0.010 + 0.0002 * num_drafts; });
  EXPECT_GT(simulation.rate(), 0.97 * Expected(4, 0.8) / 0.0108);
}

TEST(DraftPolicy, CostsAtMostTwoHundredthsWhereNothingIsAccepted) {
  Simulation simulation;
  const auto cost = [](int num_drafts) { return 0.010 * (1 + num_drafts); };
  simulation.Run(300, 8, 0.0, cost);  // finds out
  simulation.seconds = simulation.tokens = 0.0;
  simulation.Run(20000, 8, 0.0, cost);
  EXPECT_GT(simulation.rate(), 0.98 * 8 / 0.010);
}

// A server that starts under load must not pay for every load and every number of drafts anew.
TEST(DraftPolicy, FindsOutSoonThatNothingIsAccepted) {
  Simulation simulation;
  const auto cost = [](int num_drafts) { return 0.010 * (1 + 0.4 * num_drafts); };
  double tokens = 0.0;
  for (const int num_sequences : {1, 3, 6, 12, 25, 50, 100}) {
    simulation.Run(100, num_sequences, 0.0, cost);
    tokens += 100 * num_sequences;
  }
  simulation.Run(300, 100, 0.0, cost);
  tokens += 300 * 100;
  EXPECT_EQ(simulation.tokens, tokens);
  EXPECT_LT(simulation.seconds, 1.02 * 1000 * 0.010);
}

TEST(DraftPolicy, FindsTheBestNumberBetween) {
  // Two rows for the price of one, then each costs as much again.
  const auto cost = [](int num_drafts) { return 0.010 + 0.008 * std::max(0, num_drafts - 1); };
  Simulation simulation;
  simulation.Run(5000, 2, 0.6, cost);
  EXPECT_GT(simulation.rate(), 0.97 * 2 * Expected(1, 0.6) / 0.010);
}

TEST(DraftPolicy, FollowsAChangeOfAcceptance) {
  const auto cost = [](int num_drafts) { return 0.010 + 0.003 * num_drafts; };
  Simulation simulation;
  simulation.Run(4000, 4, 0.02, cost);
  simulation.Run(4000, 4, 0.95, cost);
  simulation.seconds = simulation.tokens = 0.0;
  simulation.Run(4000, 4, 0.95, cost);
  EXPECT_GT(simulation.rate(), 0.97 * 4 * Expected(4, 0.95) / 0.022);
}

TEST(DraftPolicy, ChoosesForEachLoadItsOwn) {
  Simulation simulation;
  const auto idle = [](int num_drafts) { return 0.010 + 0.0001 * num_drafts; };
  const auto busy = [](int num_drafts) { return 0.010 * (1 + num_drafts); };
  for (int round = 0; round < 50; ++round) {
    simulation.Run(50, 1, 0.7, idle);
    simulation.Run(50, 64, 0.7, busy);
  }
  int idle_drafts = 0, busy_drafts = 0;
  for (int step = 0; step < 20; ++step) idle_drafts += simulation.policy.Choose(1);
  for (int step = 0; step < 20; ++step) busy_drafts += simulation.policy.Choose(64);
  EXPECT_GT(idle_drafts, 70);
  EXPECT_LT(busy_drafts, 10);
}

TEST(DraftPolicy, IsFixedWhereItDoesNotAdapt) {
  DraftPolicy policy(3, /*adapts=*/false);
  for (int step = 0; step < 100; ++step) {
    EXPECT_EQ(policy.Choose(1), 3);
    policy.AddRound(3, 0);
    policy.AddStep(1, 3, 1.0);
  }
}

TEST(DraftPolicy, SeesACollapseAndItsEnd) {
  DraftPolicy policy(3, /*adapts=*/false);
  for (int round = 0; round < 499; ++round) policy.AddRound(3, 0);
  EXPECT_FALSE(policy.has_collapsed());
  policy.AddRound(3, 0);
  EXPECT_TRUE(policy.has_collapsed());
  for (int round = 0; round < 500; ++round) policy.AddRound(3, 2);
  EXPECT_FALSE(policy.has_collapsed());
}

}  // namespace
}  // namespace lapidary
