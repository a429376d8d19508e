#include "tensor/check_scales.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace lapidary {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Of 2 x 64 weights with 4 scales, and what a whole tensor is scaled by.
std::string Problem(ScaleType type, const std::vector<float>& scales, float tensor_scale = 1.0f) {
  const bool is_float8 = ScaleBytes(type) == 1;
  const WeightFormat format = is_float8 ? RowMajorFormat(CodeType::kE2M1, {1, 16}, type)
                                        : RowMajorFormat(CodeType::kE4M3, {1, 32}, type);
  const std::vector<uint8_t> codes(2 * 64);
  std::vector<uint8_t> f8;
  std::vector<uint16_t> half;
  for (const float scale : scales) {
    // 0x38 is 1.
    f8.push_back(static_cast<uint8_t>(scale == 1.0f   ? 0x38
                                      : scale == 0.0f ? 0
                                      : scale < 0.0f  ? 0xb8
                                                      : 0x7f));
    half.push_back(type == ScaleType::kF16 ? FloatToF16(scale) : FloatToBf16(scale));
  }
  const void* plane = is_float8                 ? static_cast<const void*>(f8.data())
                      : type == ScaleType::kF32 ? static_cast<const void*>(scales.data())
                                                : half.data();
  const MatrixRef matrix{.data = codes.data(),
                         .format = format,
                         .rows = 2,
                         .cols = is_float8 ? 32 : 64,
                         .scales = plane,
                         .tensor_scale = is_float8 ? &tensor_scale : nullptr};
  const auto bad = FindBadScale(matrix);
  if (!bad) return "none";
  return (bad->is_of_tensor ? "tensor" : "scale") + bad->problem;
}

TEST(FindBadScale, NamesTheFirstThatIsNegativeInfiniteOrNoNumber) {
  for (const ScaleType type : {ScaleType::kF32, ScaleType::kF16, ScaleType::kBF16}) {
    EXPECT_EQ(Problem(type, {1.0f, 0.0f, 2.0f, 0.5f}), "none");
    EXPECT_EQ(Problem(type, {1.0f, 1.0f, -2.0f, kNan}),
              "scale[1, 0] is -2: a scale is a number, finite and not negative");
    EXPECT_EQ(Problem(type, {1.0f, kNan, 1.0f, 1.0f}).substr(0, 15), "scale[0, 1] is ");
    EXPECT_EQ(Problem(type, {1.0f, 1.0f, 1.0f, kInfinity}).substr(0, 18), "scale[1, 1] is inf");
    EXPECT_EQ(Problem(type, {-0.0f, 1.0f, 1.0f, 1.0f}).substr(0, 17), "scale[0, 0] is -0");
  }
  for (const ScaleType type : {ScaleType::kE4M3TimesTensors, ScaleType::kE4M3OverTensors}) {
    EXPECT_EQ(Problem(type, {1.0f, 0.0f, 1.0f, 1.0f}), "none");
    EXPECT_EQ(Problem(type, {1.0f, -1.0f, 1.0f, 1.0f}).substr(0, 17), "scale[0, 1] is -1");
    EXPECT_EQ(Problem(type, {1.0f, 1.0f, kNan, 1.0f}).substr(0, 14), "scale[1, 0] is");
  }
}

TEST(FindBadScale, ZeroStandsForAGroupAndForNothingLarger) {
  EXPECT_EQ(Problem(ScaleType::kBF16, {0.0f, 0.0f, 0.0f, 1.0f}), "none");
  EXPECT_EQ(Problem(ScaleType::kBF16, {0.0f, 0.0f, 0.0f, 0.0f}), "scale holds nothing but zeros");
  for (const float value : {0.0f, -1.0f, kInfinity, kNan}) {
    for (const ScaleType type : {ScaleType::kE4M3TimesTensors, ScaleType::kE4M3OverTensors}) {
      EXPECT_EQ(Problem(type, {1.0f, 1.0f, 1.0f, 1.0f}, value).substr(0, 10), "tensor is ")
          << value;
    }
  }
}

TEST(FindBadScale, NoWeightIsInfinite) {
  EXPECT_EQ(Problem(ScaleType::kF32, {1.0f, 1.0f, 1.0f, 0x1p119f}), "none");
  EXPECT_EQ(Problem(ScaleType::kF32, {1.0f, 1.0f, 1.0f, 0x1p120f}).substr(0, 14), "scale[1, 1] is");
  EXPECT_EQ(Problem(ScaleType::kE4M3TimesTensors, {1.0f, 1.0f, 1.0f, 1.0f}, 3e38f),
            "scale[0, 0] is 1: weights are infinite by it");
}

}  // namespace
}  // namespace lapidary
