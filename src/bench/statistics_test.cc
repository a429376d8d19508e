#include "bench/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lapidary::bench {
namespace {

// Expected values are numpy's.
TEST(Statistics, AgreeWithNumpy) {
  const std::vector<double> values = {7.0, 1.0, 4.0, 2.0};
  EXPECT_DOUBLE_EQ(Mean(values), 3.5);
  EXPECT_DOUBLE_EQ(Median(values), 3.0);
  EXPECT_DOUBLE_EQ(StandardDeviation(values), std::sqrt(5.25));
  EXPECT_DOUBLE_EQ(Percentile(values, 0), 1.0);
  EXPECT_DOUBLE_EQ(Percentile(values, 25), 1.75);
  EXPECT_DOUBLE_EQ(Percentile(values, 99), 6.91);
  EXPECT_DOUBLE_EQ(Percentile(values, 100), 7.0);
}

TEST(Statistics, OneValueIsEveryPercentile) {
  const std::vector<double> values = {2.5};
  for (const double percent : {0.0, 50.0, 99.0, 100.0}) {
    EXPECT_DOUBLE_EQ(Percentile(values, percent), 2.5);
  }
  EXPECT_DOUBLE_EQ(StandardDeviation(values), 0.0);
}

TEST(Statistics, NothingIsZero) {
  EXPECT_EQ(Mean({}), 0.0);
  EXPECT_EQ(Median({}), 0.0);
  EXPECT_EQ(StandardDeviation({}), 0.0);
}

}  // namespace
}  // namespace lapidary::bench
