#include "server/fair_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace lapidary {
namespace {

constexpr int64_t kAnyRoom = std::numeric_limits<int64_t>::max();

// The requests whose steps come next.
std::vector<uint64_t> TakeAll(FairTurns& turns, int max_steps = 1000) {
  std::vector<uint64_t> order;
  while (max_steps-- > 0) {
    const auto turn = turns.Take(kAnyRoom);
    if (!turn) break;
    order.push_back(turn->request);
  }
  return order;
}

TEST(FairTurnsTest, StepsOfARequestComeInTheirOrder) {
  FairTurns turns;
  turns.Add(7, {5, 1, 3});
  EXPECT_EQ(turns.waiting_cost(), 9);
  for (size_t step = 0; step < 3; ++step) EXPECT_EQ(turns.Take(kAnyRoom)->step, step);
  EXPECT_FALSE(turns.Take(kAnyRoom));
  EXPECT_EQ(turns.waiting_cost(), 0);
}

TEST(FairTurnsTest, RequestsOfEqualStepsTakeTurns) {
  FairTurns turns;
  for (const uint64_t request : {1, 2, 3}) turns.Add(request, {10, 10});
  EXPECT_EQ(TakeAll(turns), (std::vector<uint64_t>{1, 2, 3, 1, 2, 3}));
}

TEST(FairTurnsTest, ANewcomerWaitsForNoMoreThanAStepOfEachOther) {
  FairTurns turns;
  for (uint64_t request = 0; request < 4; ++request) {
    turns.Add(request, std::vector<int64_t>(32, 100));
  }
  TakeAll(turns, 50);
  turns.Add(9, {1});
  const std::vector<uint64_t> order = TakeAll(turns, 5);
  EXPECT_NE(std::find(order.begin(), order.end(), 9), order.end());
}

TEST(FairTurnsTest, TheCostlierTheStepsTheFewerTurnsARequestHas) {
  FairTurns turns;
  turns.Add(1, std::vector<int64_t>(10, 40));
  turns.Add(2, std::vector<int64_t>(40, 10));
  const std::vector<uint64_t> order = TakeAll(turns, 25);
  EXPECT_EQ(std::count(order.begin(), order.end(), 1), 5);
}

TEST(FairTurnsTest, SmallRequestsThatKeepComingDoNotStarveALargeOne) {
  FairTurns turns;
  turns.Add(0, {100, 100, 100});
  uint64_t next = 1;
  int num_small_before_the_end = 0;
  for (int num_large = 0; num_large < 3;) {
    turns.Add(next++, {60});
    turns.Add(next++, {60});
    const auto turn = turns.Take(kAnyRoom);
    turn->request == 0 ? ++num_large : ++num_small_before_the_end;
    ASSERT_LT(num_small_before_the_end, 100);
  }
}

TEST(FairTurnsTest, AStepThatDoesNotFitIsNotOvertaken) {
  FairTurns turns;
  turns.Add(1, {50, 10});
  turns.Add(2, {55});
  EXPECT_FALSE(turns.Take(49));
  EXPECT_EQ(turns.Take(50)->request, 1u);
  EXPECT_FALSE(turns.Take(54));
  EXPECT_EQ(turns.Take(55)->request, 2u);
}

TEST(FairTurnsTest, WhatIsRemovedHasNoMoreTurns) {
  FairTurns turns;
  turns.Add(1, {10, 20});
  turns.Add(2, {30});
  EXPECT_EQ(turns.Take(kAnyRoom)->request, 1u);
  turns.Remove(1);
  turns.Remove(1);
  EXPECT_EQ(turns.waiting_cost(), 30);
  EXPECT_EQ(TakeAll(turns), (std::vector<uint64_t>{2}));
}

}  // namespace
}  // namespace lapidary
