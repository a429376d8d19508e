#include "tensor/repack.h"

#include <gtest/gtest.h>

#include <bit>

#include "tensor/decode.h"
#include "tensor/quantise.h"
#include "tensor/random_matrix.h"

namespace lapidary {
namespace {

constexpr int kRows = 130;
constexpr int kCols = 256;

struct Repacked {
  std::vector<std::byte> bytes;
  MatrixRef matrix;

  Repacked(const MatrixRef& from, const WeightFormat& to)
      : bytes(BytesOf(to, from.rows, from.cols).total()) {
    matrix = {.data = bytes.data(), .format = to, .rows = from.rows, .cols = from.cols};
    // In pieces, the last one first.
    for (int begin = from.rows / 32 * 32; begin >= 0; begin -= 32) {
      RepackRows(from, begin, std::min(begin + 32, from.rows), to, bytes.data());
    }
  }
};

std::vector<WeightFormat> Targets() {
  std::vector<WeightFormat> targets;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kQ4_0, DType::kQ5_0, DType::kQ8_0}) {
    targets.push_back(FormatOf(dtype));
  }
  return targets;
}

TEST(RepackRows, KeepsEveryWeightButForBf16sRounding) {
  uint32_t seed = 1;
  int num_ways = 0;
  for (const WeightFormat& format : StoredFormats()) {
    const RandomMatrix random(format, kRows, kCols, ++seed);
    const std::vector<float> want = DecodeMatrix(random.matrix());
    for (const WeightFormat& to : Targets()) {
      if (!CanRepack(format, to)) continue;
      ++num_ways;
      const std::vector<float> got = DecodeMatrix(Repacked(random.matrix(), to).matrix);
      for (size_t idx = 0; idx < got.size(); ++idx) {
        const float value =
            to.unit == DType::kBF16 ? Bf16ToFloat(FloatToBf16(want[idx])) : want[idx];
        ASSERT_EQ(got[idx], value) << FormatName(format) << " to " << FormatName(to) << " " << idx;
      }
    }
  }
  // To F32 and BF16 all of them; to Q4_0, Q5_0 and Q8_0 integers, where their range allows it.
  EXPECT_GT(num_ways, 2 * static_cast<int>(StoredFormats().size()) + 3 * 3 * 4);
}

TEST(RepackRows, ABlockThatIsTooSmallForItsCodesIsNoTarget) {
  const auto can = [](CodeType code, OffsetType offset, int group, DType to) {
    return CanRepack(RowMajorFormat(code, {1, group}, ScaleType::kBF16, offset), FormatOf(to));
  };
  EXPECT_TRUE(can(CodeType::kU4, OffsetType::kMiddle, 32, DType::kQ4_0));
  EXPECT_TRUE(can(CodeType::kU4, OffsetType::kZeroPoint, 0, DType::kQ5_0));
  EXPECT_FALSE(can(CodeType::kU4, OffsetType::kZeroPoint, 32, DType::kQ4_0));
  EXPECT_FALSE(can(CodeType::kU4, OffsetType::kMiddle, 16, DType::kQ4_0));
  EXPECT_TRUE(can(CodeType::kU8, OffsetType::kMiddle, 64, DType::kQ8_0));
  EXPECT_FALSE(can(CodeType::kU8, OffsetType::kZeroPoint, 64, DType::kQ8_0));
  EXPECT_FALSE(
      CanRepack(RowMajorFormat(CodeType::kE4M3, {1, 0}, ScaleType::kBF16), FormatOf(DType::kQ8_0)));
}

TEST(RepackRows, ScalesBeyondAHalfAreSeen) {
  const WeightFormat format =
      RowMajorFormat(CodeType::kU4, {1, 32}, ScaleType::kBF16, OffsetType::kMiddle);
  const RandomMatrix random(format, 4, 64, 1);
  EXPECT_TRUE(ScalesAreHalves(random.matrix()));
  std::vector<uint16_t> scales(8, FloatToBf16(1.0f));
  scales[7] = FloatToBf16(0x1p-30f);
  MatrixRef tiny = random.matrix();
  tiny.scales = scales.data();
  EXPECT_FALSE(ScalesAreHalves(tiny));
}

TEST(RepackRows, BlocksBecomePanels) {
  for (const WeightFormat& format : StoredFormats()) {
    if (format.layout != WeightLayout::kBlocks) continue;
    const RandomMatrix random(format, 32, kCols, 7);
    const WeightFormat panels = FormatOf(PanelDType(format.unit));
    ASSERT_TRUE(CanRepack(format, panels));
    const std::vector<float> want = DecodeMatrix(random.matrix());
    const std::vector<float> got = DecodeMatrix(Repacked(random.matrix(), panels).matrix);
    for (size_t idx = 0; idx < got.size(); ++idx) {
      // Scales and offsets that are no halves are rounded to them: of at most 63 times 2^-5 each,
      // the product with codes below 128 too.
      EXPECT_NEAR(got[idx], want[idx], (std::abs(want[idx]) + 4.0f) * 0x1p-10f)
          << FormatName(format) << " " << idx;
    }
  }
}

TEST(RoundRows, IsQuantiseOfEachRow) {
  const RandomMatrix random(FormatOf(DType::kF32), 6, 256, 5);
  const std::vector<float> values = DecodeMatrix(random.matrix());
  for (const DType to : {DType::kQ4_0, DType::kQ5_0, DType::kQ8_0, DType::kQ4_K}) {
    ASSERT_TRUE(CanRound(random.matrix().format, to, 256));
    std::vector<std::byte> got(DTypeBytes(to, 6 * 256)), want(got.size());
    RoundRows(random.matrix(), 3, 6, to, got.data());
    RoundRows(random.matrix(), 0, 3, to, got.data());
    Quantise(values.data(), 6 * 256, to, want.data());
    EXPECT_EQ(got, want) << DTypeName(to);
  }
  EXPECT_FALSE(CanRound(FormatOf(DType::kQ8_0), DType::kQ4_0, 256));
  EXPECT_FALSE(CanRound(FormatOf(DType::kBF16), DType::kQ4_0, 48));
}

}  // namespace
}  // namespace lapidary
