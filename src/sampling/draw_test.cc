#include "sampling/draw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lapidary {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// r and the polynomial each round a few times: four units in the last place in all.
constexpr double kWeightError = 4 * 5.96e-8;

TEST(TokenWeight, MatchesExpWithinAFewUnitsInTheLastPlace) {
  for (int step = 0; step <= 79000; ++step) {
    const float x = -static_cast<float>(step) * 1e-3f;
    const double expected = std::exp(static_cast<double>(x));
    ASSERT_NEAR(TokenWeight(x, 0.0f, 1.0f) / expected, 1.0, kWeightError) << x;
  }
}

TEST(TokenWeight, IsOneAtTheMaximumAndZeroFarBelow) {
  for (const float max : {-1e30f, -3.5f, 0.0f, 29.9f, 3e38f}) {
    for (const float inv_temperature : {1e-30f, 1.0f, 1e5f}) {
      EXPECT_EQ(TokenWeight(max, max, inv_temperature), 1.0f);
      EXPECT_EQ(TokenWeight(-kInfinity, max, inv_temperature), 0.0f);
    }
  }
  EXPECT_GT(TokenWeight(-80.0f, 0.0f, 1.0f), 0.0f);
  EXPECT_EQ(TokenWeight(-80.001f, 0.0f, 1.0f), 0.0f);
  EXPECT_EQ(TokenWeight(-3e38f, 3e38f, 1e5f), 0.0f);
}

TEST(ExponentialFromBits, IsTheInverseOfItsDistributionInBothTails) {
  const auto check = [](uint32_t bits) {
    const double v = (static_cast<double>(bits >> 1) + 0.5) * std::ldexp(1.0, -31);
    const double expected = -std::log1p(-v);
    const float got = ExponentialFromBits(bits);
    ASSERT_TRUE(std::isfinite(got) && got > 0.0f) << bits;
    // Rounding of v, of the polynomial and of the last sum: relative everywhere, near zero too.
    ASSERT_NEAR(got / expected, 1.0, 4e-7) << bits;
  };
  for (uint32_t near = 0; near < 4096; ++near) {
    check(near);
    check(0xffffffffu - near);
    check(0x80000000u + near);
    check(0x4afb0ccdu - 2048 + near);  // About v = 1 - sqrt(1/2), where the reduction changes.
  }
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 65521) {
    check(static_cast<uint32_t>(bits));
  }
  EXPECT_EQ(ExponentialFromBits(0), std::ldexp(1.0f, -32));
  EXPECT_LT(ExponentialFromBits(0xffffffffu), 22.3f);
}

TEST(Cutoff, OrdersByLogitThenId) {
  const Cutoff cutoff{2.0f, 5};
  EXPECT_TRUE(cutoff.Keeps(2.5f, 9));
  EXPECT_TRUE(cutoff.Keeps(2.0f, 5));
  EXPECT_FALSE(cutoff.Keeps(2.0f, 6));
  EXPECT_FALSE(cutoff.Keeps(1.9f, 0));
  EXPECT_TRUE(Cutoff().Keeps(-kInfinity, 123));
}

}  // namespace
}  // namespace lapidary
