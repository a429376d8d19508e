// The conversions over all 65,536 stored values, and rounding against the definition.
#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tensor/half_values.h"
#include "tensor/tensor_view.h"

namespace lapidary {
namespace {

// The value of a binary16 pattern, from its definition.
double F16Value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                           : exponent == 31 ? std::numeric_limits<double>::infinity()
                                            : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool IsF16Nan(uint16_t bits) { return (bits & 0x7c00) == 0x7c00 && (bits & 0x3ff) != 0; }
bool IsBf16Nan(uint16_t bits) { return (bits & 0x7f80) == 0x7f80 && (bits & 0x7f) != 0; }

TEST(DType, Bf16IsTheUpperHalfOfAFloatAndComesBackUnchanged) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    if (IsBf16Nan(static_cast<uint16_t>(bits))) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_TRUE(IsBf16Nan(FloatToBf16(value)));
    } else {
      ASSERT_EQ(FloatToBf16(value), bits);
    }
  }
}

TEST(DType, F16HasItsDefinedValueAndComesBackUnchanged) {
  for (uint32_t wide = 0; wide < 65536; ++wide) {
    const uint16_t bits = static_cast<uint16_t>(wide);
    const float value = F16ToFloat(bits);
    ASSERT_EQ(std::bit_cast<uint32_t>(kHalfValues[bits]), std::bit_cast<uint32_t>(value)) << bits;
    if (IsF16Nan(bits)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(IsF16Nan(FloatToF16(value))) << bits;
      continue;
    }
    ASSERT_EQ(value, F16Value(bits)) << bits;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
    ASSERT_EQ(FloatToF16(value), bits) << bits;
  }
}

// Between every two neighbours: just below the midpoint goes down, just above goes up, the midpoint
// itself to the even one.
template <typename Widen, typename Narrow>
void CheckRounding(uint16_t largest_finite, double beyond_largest, Widen widen, Narrow narrow) {
  for (uint32_t wide = 0; wide <= largest_finite; ++wide) {
    const uint16_t low = static_cast<uint16_t>(wide);
    const uint16_t high = static_cast<uint16_t>(wide + 1);
    const double high_value = low == largest_finite ? beyond_largest : double{widen(high)};
    const float middle = static_cast<float>((double{widen(low)} + high_value) / 2);
    const float infinity = std::numeric_limits<float>::infinity();
    ASSERT_EQ(narrow(std::nextafter(middle, -infinity)), low);
    ASSERT_EQ(narrow(std::nextafter(middle, infinity)), high);
    ASSERT_EQ(narrow(middle), low % 2 == 0 ? low : high);
    ASSERT_EQ(narrow(-middle), (low % 2 == 0 ? low : high) | 0x8000);
  }
}

TEST(DType, F16RoundsToNearestEvenEverywhereAndOverflowsToInfinity) {
  CheckRounding(0x7bff, 65536.0, F16ToFloat, FloatToF16);
  EXPECT_EQ(FloatToF16(3.4e38f), 0x7c00);
  EXPECT_EQ(FloatToF16(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(FloatToF16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(DType, Bf16RoundsToNearestEvenEverywhereAndOverflowsToInfinity) {
  CheckRounding(0x7f7f, std::ldexp(1.0, 128), Bf16ToFloat, FloatToBf16);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(FloatToBf16(-std::numeric_limits<float>::infinity()), 0xff80);
}

TEST(DType, NanStaysNanWithItsSignWhateverItsPayload) {
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(IsBf16Nan(FloatToBf16(nan)));
    EXPECT_TRUE(IsF16Nan(FloatToF16(nan)));
    EXPECT_EQ(FloatToBf16(nan) >> 15, bits >> 31);
    EXPECT_EQ(FloatToF16(nan) >> 15, bits >> 31);
  }
}

TEST(DType, NamesAndSizesRoundTrip) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI64, DType::kI32, DType::kI16,
        DType::kI8, DType::kU8, DType::kBool, DType::kF8E4M3, DType::kF8E5M2}) {
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype) << DTypeName(dtype);
  }
  EXPECT_EQ(DTypeSize(DType::kBF16), 2);
  EXPECT_EQ(DTypeSize(DType::kF32), 4);
  EXPECT_EQ(DTypeSize(DType::kI64), 8);
  EXPECT_EQ(DTypeSize(DType::kF8E4M3), 1);
  for (const char* name : {"", "bf16", "BF16 ", "F4", "U64X"}) EXPECT_FALSE(ParseDType(name));
}

TEST(DType, BlockTypesHaveNoElementsOfTheirOwnAndNoSafetensorsName) {
  for (const DType dtype :
       {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ4_K,
        DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS}) {
    EXPECT_TRUE(IsBlockDType(dtype)) << DTypeName(dtype);
    EXPECT_FALSE(ParseDType(DTypeName(dtype))) << DTypeName(dtype);
    EXPECT_FALSE(IsWeightDType(dtype)) << DTypeName(dtype);
    EXPECT_DEATH(DTypeSize(dtype), DTypeName(dtype));
    EXPECT_EQ(DTypeBytes(dtype, 3 * BlockOf(dtype).elements), 3 * BlockOf(dtype).bytes);
    EXPECT_DEATH(DTypeBytes(dtype, BlockOf(dtype).elements / 2), DTypeName(dtype));
  }
  EXPECT_FALSE(IsBlockDType(DType::kF8E5M2));
  EXPECT_EQ(DTypeBytes(DType::kBF16, 7), 14);
}

TEST(TensorView, ToFloatsWidensEveryWeightType) {
  const float expected[] = {1.5f, -2.0f, 0.0f, 1024.0f};
  uint16_t bf16[4], f16[4];
  for (int idx = 0; idx < 4; ++idx) {
    bf16[idx] = FloatToBf16(expected[idx]);
    f16[idx] = FloatToF16(expected[idx]);
  }
  const std::vector<float> want(expected, expected + 4);
  const auto view = [](const void* data, DType dtype) {
    return TensorView{static_cast<const std::byte*>(data), dtype, {2, 2}};
  };
  EXPECT_EQ(ToFloats(view(expected, DType::kF32)), want);
  EXPECT_EQ(ToFloats(view(bf16, DType::kBF16)), want);
  EXPECT_EQ(ToFloats(view(f16, DType::kF16)), want);
  EXPECT_EQ(view(f16, DType::kF16).num_bytes(), 8);
  EXPECT_EQ(ShapeToString({2, 3}), "[2, 3]");
  EXPECT_EQ(ShapeToString({}), "[]");
}

}  // namespace
}  // namespace lapidary
