#include "tensor/tile_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "tensor/decode.h"
#include "tensor/random_matrix.h"

namespace lapidary {
namespace {

// Any two formats of files, but for those without tiles.
template <typename Function>
void ForPairs(const Function& visit) {
  for (const WeightFormat& one : StoredFormats()) {
    for (const WeightFormat& other : StoredFormats()) {
      if (TileFormatFor(one) && TileFormatFor(other)) visit(one, other);
    }
  }
}

void ExpectHeld(const WeightFormat& format, const WeightFormat& tiles, uint32_t seed) {
  SCOPED_TRACE(FormatName(format) + " to " + FormatName(tiles));
  constexpr int kRows = 130, kCols = 256;
  const RandomMatrix random(format, kRows, kCols, seed);
  TileRow row;
  std::vector<float> want(kCols);
  for (int idx = 0; idx < kRows; ++idx) {
    MakeTileRow(random.matrix(), idx, tiles, &row);
    DecodeRow(random.matrix(), idx, want.data());
    for (int col = 0; col < kCols; ++col) {
      ASSERT_EQ(TileWeight(tiles, row, col), want[col]) << idx << ", " << col;
      if (CodeBits(tiles.code) == 4) {
        ASSERT_LT(row.codes[col], 16);
      }
      if (CodeBits(tiles.code) == 6) {
        ASSERT_LT(row.codes[col], 64);
      }
    }
  }
}

TEST(TileRow, HoldsEveryWeightOfEveryStoredFormat) {
  uint32_t seed = 1;
  for (const WeightFormat& format : StoredFormats()) {
    const std::optional<WeightFormat> tiles = TileFormatFor(format);
    if (tiles) {
      ExpectHeld(format, *tiles, ++seed);
      continue;
    }
    // What no tile holds.
    EXPECT_TRUE(format.is_plain() || format.code == CodeType::kE2M1 ||
                (format.code == CodeType::kU8 && format.offset == OffsetType::kZeroPoint))
        << FormatName(format);
  }
}

TEST(TileRow, HoldsEveryWeightWhereTwoFormatsShareOne) {
  std::set<std::string> seen;
  ForPairs([&](const WeightFormat& one, const WeightFormat& other) {
    const std::optional<WeightFormat> common =
        CommonTiles(*TileFormatFor(one), *TileFormatFor(other));
    EXPECT_EQ(common, CommonTiles(*TileFormatFor(other), *TileFormatFor(one)));
    if (!common) return;
    EXPECT_TRUE(TilesHold(*common, one));
    EXPECT_GE(RowBytes(*common, 64), RowBytes(*TileFormatFor(one), 64));
    if (seen.insert(FormatName(one) + FormatName(*common)).second) ExpectHeld(one, *common, 7);
  });
}

TEST(TileRow, FormatsThatDifferInMoreThanBitsShareNone) {
  const auto common = [](const WeightFormat& one, const WeightFormat& other) {
    return CommonTiles(*TileFormatFor(one), *TileFormatFor(other));
  };
  const WeightFormat w4 =
      RowMajorFormat(CodeType::kU4, {1, 32}, ScaleType::kBF16, OffsetType::kMiddle);
  const WeightFormat w4_points =
      RowMajorFormat(CodeType::kU4, {1, 32}, ScaleType::kBF16, OffsetType::kZeroPoint);
  const WeightFormat w8 = RowMajorFormat(CodeType::kS8, {1, 0}, ScaleType::kBF16);
  const WeightFormat f8 = RowMajorFormat(CodeType::kE4M3, {1, 0}, ScaleType::kBF16);
  EXPECT_EQ(FormatName(*common(w4, w8)), "W8 BF16/32");
  EXPECT_EQ(FormatName(*common(FormatOf(DType::kQ4_0), FormatOf(DType::kQ8_0))), "W8 F16/32");
  EXPECT_EQ(FormatName(*common(FormatOf(DType::kQ4_K), FormatOf(DType::kQ6_K))), "W8M F16*INT/16");
  EXPECT_FALSE(common(w4, w4_points));
  EXPECT_FALSE(common(w8, f8));
  EXPECT_FALSE(common(w4, FormatOf(DType::kQ4_0)));
  EXPECT_FALSE(TilesHold(*TileFormatFor(w4), w8));
  EXPECT_FALSE(TilesHold(*TileFormatFor(w8), FormatOf(DType::kBF16)));
}

// A tile stores scales and minima in the format's type: nothing may be lost there either.
TEST(TileRow, ScalesAndMinimaAreOfTheirType) {
  for (const WeightFormat& format : StoredFormats()) {
    const std::optional<WeightFormat> tiles = TileFormatFor(format);
    if (!tiles) continue;
    const auto is_half = [](float value) { return F16ToFloat(FloatToF16(value)) == value; };
    const auto is_exact = [&](float value) {
      if (tiles->scale == ScaleType::kF32) return true;
      if (tiles->scale == ScaleType::kBF16) return Bf16ToFloat(FloatToBf16(value)) == value;
      return is_half(value);
    };
    const RandomMatrix random(format, 16, 256, 3);
    TileRow row;
    for (int idx = 0; idx < 16; ++idx) {
      MakeTileRow(random.matrix(), idx, *tiles, &row);
      for (const float scale : row.scale) EXPECT_TRUE(is_exact(scale)) << FormatName(*tiles);
      for (const float minimum : row.minimum) EXPECT_TRUE(is_half(minimum)) << FormatName(*tiles);
    }
  }
}

// Kernels have no NaN among their codes.
TEST(TileRow, ANanAmongCodesIsSeen) {
  const WeightFormat format = RowMajorFormat(CodeType::kE4M3, {1, 0}, ScaleType::kF32);
  std::vector<uint8_t> codes(64, 0x38);
  codes[40] = 0xff;
  const float scale = 1.0f;
  const MatrixRef matrix{
      .data = codes.data(), .format = format, .rows = 1, .cols = 64, .scales = &scale};
  const WeightFormat tiles = *TileFormatFor(format);
  TileRow row;
  MakeTileRow(matrix, 0, tiles, &row);
  EXPECT_EQ(TileWeight(tiles, row, 0), 1.0f);
  EXPECT_TRUE(std::isnan(TileWeight(tiles, row, 40)));
}

TEST(TileRow, FormatsAreFew) {
  const auto tiles = [](const WeightFormat& format) { return FormatName(*TileFormatFor(format)); };
  const auto of_type = [&](DType dtype) { return tiles(FormatOf(dtype)); };
  EXPECT_EQ(of_type(DType::kQ4_0), "W4 F16/32");
  EXPECT_EQ(of_type(DType::kQ4_1), "W4M F16/32");
  EXPECT_EQ(of_type(DType::kQ4_K), "W4M F16*INT/32");
  EXPECT_EQ(of_type(DType::kQ5_0), "W8 F16/32");
  EXPECT_EQ(of_type(DType::kQ5_1), "W8M F16*INT/16");
  EXPECT_EQ(of_type(DType::kQ5_K), "W8M F16*INT/16");
  EXPECT_EQ(of_type(DType::kQ6_K), "W6 F16*INT/16");
  EXPECT_EQ(of_type(DType::kQ8_0), "W8 F16/32");
  EXPECT_EQ(of_type(DType::kIQ4_NL), "W8 F16/32");
  EXPECT_EQ(of_type(DType::kIQ4_XS), "W8 F16*INT/16");
  const auto row_major = [&](CodeType code, ScaleType scale, WeightGroup group, OffsetType offset) {
    return tiles(RowMajorFormat(code, group, scale, offset));
  };
  for (const int group : {32, 64, 128, 0}) {
    const auto w4 = [&](ScaleType scale, OffsetType offset) {
      return row_major(CodeType::kU4, scale, {1, group}, offset);
    };
    EXPECT_EQ(w4(ScaleType::kBF16, OffsetType::kMiddle), "W4 BF16/32");
    EXPECT_EQ(w4(ScaleType::kF16, OffsetType::kMiddle), "W4 F16/32");
    EXPECT_EQ(w4(ScaleType::kF32, OffsetType::kMiddle), "W8 F32/32");
    EXPECT_EQ(w4(ScaleType::kBF16, OffsetType::kZeroPoint), "W4Z BF16/32");
    EXPECT_EQ(w4(ScaleType::kF16, OffsetType::kZeroPoint), "W8 F16/32");
    EXPECT_EQ(row_major(CodeType::kU8, ScaleType::kBF16, {1, group}, OffsetType::kMiddle),
              "W8 BF16/32");
  }
  EXPECT_EQ(row_major(CodeType::kS8, ScaleType::kBF16, {1, 0}, OffsetType::kNone), "W8 BF16/32");
  EXPECT_EQ(row_major(CodeType::kE4M3, ScaleType::kBF16, {0, 0}, OffsetType::kNone), "F8 F32/32");
  EXPECT_EQ(row_major(CodeType::kE4M3, ScaleType::kF32, {128, 128}, OffsetType::kNone),
            "F8 F32/32");
  EXPECT_FALSE(
      TileFormatFor(RowMajorFormat(CodeType::kU4, {1, 48}, ScaleType::kBF16, OffsetType::kMiddle)));
}

}  // namespace
}  // namespace lapidary
