#include "tensor/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lapidary {
namespace {

TEST(Float8, ComesBackUnchanged) {
  EXPECT_EQ(Float8ToFloat(0x01), 0x1p-9f);
  EXPECT_EQ(Float8ToFloat(0x38), 1.0f);
  EXPECT_EQ(Float8ToFloat(0xfe), -kLargestFloat8);
  for (int bits = 0; bits < 256; ++bits) {
    const float value = Float8ToFloat(static_cast<uint8_t>(bits));
    ASSERT_EQ(std::isnan(value), (bits & 0x7f) == 0x7f) << bits;
    ASSERT_EQ(FloatToFloat8(value), bits);
  }
}

TEST(Float8, IsTheNearestAndTheEvenOfTwoThatAre) {
  for (int bits = 0; bits < 0x7e; ++bits) {
    const float low = Float8ToFloat(static_cast<uint8_t>(bits));
    const float high = Float8ToFloat(static_cast<uint8_t>(bits + 1));
    const float middle = (low + high) / 2.0f;
    const int even = bits + bits % 2;
    ASSERT_EQ(FloatToFloat8(middle), even) << bits;
    ASSERT_EQ(FloatToFloat8(-middle), even | 0x80) << bits;
    ASSERT_EQ(FloatToFloat8(std::nextafter(middle, low)), bits);
    ASSERT_EQ(FloatToFloat8(std::nextafter(middle, high)), bits + 1);
  }
}

TEST(Float8, HasNothingBeyondTheLargest) {
  for (const float large : {449.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(FloatToFloat8(large), 0x7e);
    EXPECT_EQ(FloatToFloat8(-large), 0xfe);
  }
}

}  // namespace
}  // namespace lapidary
