#include "sampling/simulated_acceptance.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lapidary {
namespace {

// Tokens of each of many rounds.
std::vector<int> Lengths(const std::vector<float>& rates, int num_rounds) {
  std::vector<int> lengths;
  uint64_t draw_number = 0;
  for (int round = 0; round < num_rounds; ++round) {
    int length = 1;
    while (length <= static_cast<int>(rates.size()) &&
           SimulatesAccept(rates[length - 1], /*seed=*/7, draw_number + length - 1)) {
      ++length;
    }
    draw_number += length;
    lengths.push_back(length);
  }
  return lengths;
}

double Mean(const std::vector<int>& lengths) {
  double sum = 0.0;
  for (const int length : lengths) sum += length;
  return sum / static_cast<double>(lengths.size());
}

TEST(SimulatedAcceptance, RoundsHaveTheLengthAskedForUnderBothSchedules) {
  constexpr int kRounds = 40000;
  for (const SimulatedSchedule schedule :
       {SimulatedSchedule::kConstant, SimulatedSchedule::kMinVariance}) {
    for (const double length : {1.0, 1.7, 2.84, 3.13, 4.0}) {
      // A round's length deviates by at most 1.5: five standard errors of the mean.
      EXPECT_NEAR(Mean(Lengths(SimulatedRates(schedule, length, 3), kRounds)), length,
                  5 * 1.5 / std::sqrt(kRounds));
    }
  }
}

TEST(SimulatedAcceptance, MinVarianceRoundsDifferByOneAtMost) {
  for (const int length : Lengths(SimulatedRates(SimulatedSchedule::kMinVariance, 2.84, 5), 1000)) {
    EXPECT_TRUE(length == 2 || length == 3) << length;
  }
}

TEST(SimulatedAcceptance, ConstantRatesAreEqual) {
  const std::vector<float> rates = SimulatedRates(SimulatedSchedule::kConstant, 2.6, 4);
  for (const float rate : rates) EXPECT_EQ(rate, rates[0]);
}

}  // namespace
}  // namespace lapidary
