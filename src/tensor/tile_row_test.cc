#include "tensor/tile_row.h"

#include <gtest/gtest.h>

#include "tensor/decode.h"
#include "tensor/random_matrix.h"

namespace lapidary {
namespace {

TEST(TileRow, HoldsEveryWeightOfEveryStoredFormat) {
  uint32_t seed = 1;
  for (const WeightFormat& format : StoredFormats()) {
    if (format.is_plain()) {
      EXPECT_FALSE(TileFormatFor(format)) << FormatName(format);
      continue;
    }
    const std::optional<WeightFormat> fitting = TileFormatFor(format);
    if (!fitting) {
      // The one kind that no tile holds.
      EXPECT_TRUE(format.code == CodeType::kU8 && format.offset == OffsetType::kZeroPoint &&
                  format.scale == ScaleType::kF32)
          << FormatName(format);
      continue;
    }
    const RandomMatrix random(format, 130, 256, ++seed);
    WeightFormat widened = *fitting;
    widened.scale = ScaleType::kF32;
    for (const WeightFormat& tiles : {*fitting, widened}) {
      TileRow row;
      std::vector<float> want(256);
      for (int idx = 0; idx < 130; ++idx) {
        MakeTileRow(random.matrix(), idx, tiles, &row);
        DecodeRow(random.matrix(), idx, want.data());
        for (int col = 0; col < 256; ++col) {
          ASSERT_EQ(TileWeight(tiles, row, col), want[col])
              << FormatName(format) << " to " << FormatName(tiles) << ": " << idx << ", " << col;
          if (CodeBits(tiles.code) == 4) {
            ASSERT_LT(row.codes[col], 16);
          }
        }
      }
    }
  }
}

// A tile stores scales and minima in the format's type: nothing may be lost there either.
TEST(TileRow, ScalesAndMinimaAreOfTheirType) {
  for (const WeightFormat& format : StoredFormats()) {
    const std::optional<WeightFormat> tiles = TileFormatFor(format);
    if (!tiles) continue;
    const auto is_exact = [&](float value) {
      if (tiles->scale == ScaleType::kF16) return F16ToFloat(FloatToF16(value)) == value;
      if (tiles->scale == ScaleType::kBF16) return Bf16ToFloat(FloatToBf16(value)) == value;
      return tiles->scale == ScaleType::kF32;
    };
    const RandomMatrix random(format, 16, 256, 3);
    TileRow row;
    for (int idx = 0; idx < 16; ++idx) {
      MakeTileRow(random.matrix(), idx, *tiles, &row);
      for (const float scale : row.scale) EXPECT_TRUE(is_exact(scale)) << FormatName(*tiles);
      for (const float minimum : row.minimum) EXPECT_TRUE(is_exact(minimum)) << FormatName(*tiles);
    }
  }
}

TEST(TileRow, FormatsAreFew) {
  const auto tiles = [](const WeightFormat& format) { return FormatName(*TileFormatFor(format)); };
  const auto of_type = [&](DType dtype) { return tiles(FormatOf(dtype)); };
  EXPECT_EQ(of_type(DType::kQ4_0), "W4 F16/32");
  EXPECT_EQ(of_type(DType::kQ4_1), "W4M F16/32");
  EXPECT_EQ(of_type(DType::kQ4_K), "W4M F32/32");
  EXPECT_EQ(of_type(DType::kQ5_0), "W8 F16/32");
  EXPECT_EQ(of_type(DType::kQ5_1), "W8M F16/32");
  EXPECT_EQ(of_type(DType::kQ5_K), "W8M F32/32");
  EXPECT_EQ(of_type(DType::kQ6_K), "W8 F32/16");
  EXPECT_EQ(of_type(DType::kQ8_0), "W8 F16/32");
  EXPECT_EQ(of_type(DType::kIQ4_NL), "W8 F16/32");
  EXPECT_EQ(of_type(DType::kIQ4_XS), "W8 F32/32");
  const auto bf16 = [&](CodeType code, WeightGroup group, OffsetType offset) {
    return tiles(RowMajorFormat(code, group, ScaleType::kBF16, offset));
  };
  for (const int group : {32, 64, 128, 0}) {
    EXPECT_EQ(bf16(CodeType::kU4, {1, group}, OffsetType::kMiddle), "W4 BF16/32");
    EXPECT_EQ(bf16(CodeType::kU4, {1, group}, OffsetType::kZeroPoint), "W4M F32/32");
  }
  EXPECT_EQ(bf16(CodeType::kS8, {1, 0}, OffsetType::kNone), "W8 BF16/row");
  EXPECT_EQ(bf16(CodeType::kE4M3, {0, 0}, OffsetType::kNone), "F8 BF16/row");
  EXPECT_EQ(bf16(CodeType::kE4M3, {128, 128}, OffsetType::kNone), "F8 BF16/128");
  EXPECT_EQ(tiles(RowMajorFormat(CodeType::kE2M1, {1, 16}, ScaleType::kE4M3OverTensors)),
            "N4 F32/16");
}

}  // namespace
}  // namespace lapidary
