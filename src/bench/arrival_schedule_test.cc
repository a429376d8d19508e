#include "bench/arrival_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lapidary::bench {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Of the gaps: standard deviation over mean, 1 / sqrt(shape) for a gamma distribution.
double Variation(const std::vector<double>& times) {
  double sum = 0.0;
  double squares = 0.0;
  double last = 0.0;
  for (const double time : times) {
    sum += time - last;
    squares += (time - last) * (time - last);
    last = time;
  }
  const double count = static_cast<double>(times.size());
  const double mean = sum / count;
  return std::sqrt(std::max(squares / count - mean * mean, 0.0)) / mean;
}

TEST(ArrivalSchedule, AnInfiniteRateSendsAllAtOnce) {
  EXPECT_EQ(MakeArrivalSchedule(3, kInfinity, 1.0, 7), (std::vector<double>{0, 0, 0}));
}

TEST(ArrivalSchedule, TheLastRequestLeavesWhenTheRateSays) {
  for (const double burstiness : {0.1, 1.0, 5.0, kInfinity}) {
    const auto times = MakeArrivalSchedule(100, 4.0, burstiness, 1);
    EXPECT_NEAR(times.back(), 25.0, 1e-9);
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  }
}

TEST(ArrivalSchedule, BurstinessIsTheShapeOfTheGaps) {
  EXPECT_NEAR(Variation(MakeArrivalSchedule(200000, 10.0, 1.0, 1)), 1.0, 0.02);
  EXPECT_NEAR(Variation(MakeArrivalSchedule(200000, 10.0, 4.0, 1)), 0.5, 0.02);
  EXPECT_NEAR(Variation(MakeArrivalSchedule(200000, 10.0, 0.25, 1)), 2.0, 0.05);
  EXPECT_NEAR(Variation(MakeArrivalSchedule(1000, 10.0, kInfinity, 1)), 0.0, 1e-6);
}

TEST(ArrivalSchedule, TheSeedDecides) {
  EXPECT_EQ(MakeArrivalSchedule(50, 2.0, 1.0, 3), MakeArrivalSchedule(50, 2.0, 1.0, 3));
  EXPECT_NE(MakeArrivalSchedule(50, 2.0, 1.0, 3), MakeArrivalSchedule(50, 2.0, 1.0, 4));
}

TEST(RampSchedule, GapsShrinkFromTheFirstRateToTheLast) {
  const auto linear = MakeRampSchedule(11, {false, 1.0, 11.0}, kInfinity, 1);
  const auto exponential = MakeRampSchedule(3, {true, 1.0, 100.0}, kInfinity, 1);
  EXPECT_NEAR(linear[0], 1.0, 1e-12);
  EXPECT_NEAR(linear[5] - linear[4], 1.0 / 6.0, 1e-12);
  EXPECT_NEAR(linear[10] - linear[9], 1.0 / 11.0, 1e-12);
  EXPECT_NEAR(exponential[1] - exponential[0], 0.1, 1e-12);
  EXPECT_NEAR(exponential[2] - exponential[1], 0.01, 1e-12);
  const auto random = MakeRampSchedule(20000, {false, 50.0, 50.0}, 1.0, 3);
  EXPECT_NEAR(random.back(), 400.0, 12.0) << "four standard deviations";
  EXPECT_NEAR(Variation(random), 1.0, 0.05);
}

}  // namespace
}  // namespace lapidary::bench
