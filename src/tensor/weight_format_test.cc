#include "tensor/weight_format.h"

#include <gtest/gtest.h>

#include <set>

#include "tensor/random_matrix.h"

namespace lapidary {
namespace {

TEST(WeightFormat, ATypeSaysWhatItsBlocksHold) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
        DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL,
        DType::kIQ4_XS, DType::kPanel4, DType::kPanel4Min, DType::kPanel6Min, DType::kPanel6Fine,
        DType::kPanel8}) {
    const WeightFormat format = FormatOf(dtype);
    EXPECT_EQ(format.unit, dtype);
    EXPECT_TRUE(format.has_dtype());
    EXPECT_EQ(format.is_plain(), BlockOf(dtype).elements == 1) << DTypeName(dtype);
    EXPECT_EQ(FormatName(format), DTypeName(dtype));
    EXPECT_EQ(BytesOf(format, 16, 512).total(), DTypeBytes(dtype, 16 * 512)) << DTypeName(dtype);
    EXPECT_FALSE(format.has_scale_plane());
    if (BlockOf(dtype).elements == 1) continue;
    // Codes, and at most two bits more for each of them: no field is forgotten or counted twice.
    const int bits = BlockOf(dtype).bytes * 8 - CodeBits(format.code) * BlockOf(dtype).elements;
    EXPECT_GE(bits, 0) << DTypeName(dtype);
    EXPECT_LE(bits, BlockOf(dtype).elements * 2) << DTypeName(dtype);
  }
  EXPECT_EQ(WeightFormat{}, FormatOf(DType::kBF16));
  EXPECT_DEATH(FormatOf(DType::kI64), "never I64");
}

TEST(WeightFormat, EveryFormatHasAName) {
  std::set<std::string> names;
  std::vector<WeightFormat> formats = StoredFormats();
  for (const ScaleType scale :
       {ScaleType::kF32, ScaleType::kF16, ScaleType::kBF16, ScaleType::kF16TimesInteger}) {
    for (const int group : {16, 32}) {
      formats.push_back(TileFormat(CodeType::kU4, group, scale, OffsetType::kMiddle));
      formats.push_back(TileFormat(CodeType::kU4, group, scale, OffsetType::kMinimum));
      formats.push_back(TileFormat(CodeType::kU4, group, scale, OffsetType::kZeroPoint));
      formats.push_back(TileFormat(CodeType::kU6, group, scale, OffsetType::kMiddle));
      formats.push_back(TileFormat(CodeType::kS8, group, scale, OffsetType::kNone));
      formats.push_back(TileFormat(CodeType::kS8, group, scale, OffsetType::kMinimum));
      formats.push_back(TileFormat(CodeType::kE4M3, group, scale, OffsetType::kNone));
    }
  }
  for (const WeightFormat& format : formats) {
    EXPECT_TRUE(names.insert(FormatName(format)).second) << FormatName(format);
  }
  const auto name = [](CodeType code, WeightGroup group, ScaleType scale, OffsetType offset) {
    return FormatName(RowMajorFormat(code, group, scale, offset));
  };
  EXPECT_EQ(name(CodeType::kU4, {1, 32}, ScaleType::kBF16, OffsetType::kZeroPoint),
            "U4 BF16/1x32 zero points");
  EXPECT_EQ(name(CodeType::kE4M3, {0, 0}, ScaleType::kF32, OffsetType::kNone),
            "F8_E4M3 F32/allxall");
  EXPECT_EQ(name(CodeType::kE2M1, {1, 16}, ScaleType::kE4M3OverTensors, OffsetType::kNone),
            "E2M1 F8_E4M3/F32/1x16");
  EXPECT_EQ(FormatName(TileFormat(CodeType::kU4, 32, ScaleType::kF16, OffsetType::kMiddle)),
            "W4 F16/32");
  EXPECT_EQ(
      FormatName(TileFormat(CodeType::kU4, 32, ScaleType::kF16TimesInteger, OffsetType::kMinimum)),
      "W4M F16*INT/32");
}

TEST(WeightFormat, PlanesAreWhatTheFilesHave) {
  struct Case {
    WeightFormat format;
    int64_t rows, cols;
    PlaneBytes bytes;
  };
  using enum CodeType;
  using Scale = ScaleType;
  using Offset = OffsetType;
  const Case cases[] = {
      // [10, 96] of 4 bits: 12 words a row; zero points of ten rows are two words a group.
      {RowMajorFormat(kU4, {1, 32}, Scale::kBF16, Offset::kMiddle), 10, 96, {480, 60, 0, 0}},
      {RowMajorFormat(kU4, {1, 32}, Scale::kBF16, Offset::kZeroPoint), 10, 96, {480, 60, 24, 0}},
      {RowMajorFormat(kU4, {1, 0}, Scale::kF32, Offset::kMiddle), 10, 30, {160, 40, 0, 0}},
      {RowMajorFormat(kU8, {1, 32}, Scale::kF16, Offset::kZeroPoint), 10, 96, {960, 60, 36, 0}},
      {RowMajorFormat(kS8, {1, 0}, Scale::kBF16), 10, 30, {300, 20, 0, 0}},
      {RowMajorFormat(kE4M3, {0, 0}, Scale::kF32), 130, 192, {130 * 192, 4, 0, 0}},
      {RowMajorFormat(kE4M3, {128, 128}, Scale::kF32), 130, 192, {130 * 192, 16, 0, 0}},
      {RowMajorFormat(kE2M1, {1, 16}, Scale::kE4M3OverTensors), 10, 32, {160, 20, 0, 4}},
      // Two tiles of 8 x 64: 256 bytes of codes and 16 scales each; minima are as many.
      {TileFormat(kU4, 32, Scale::kF16, Offset::kMiddle), 16, 64, {512 + 64, 0, 0, 0}},
      {TileFormat(kU4, 32, Scale::kF16, Offset::kMinimum), 16, 64, {512 + 128, 0, 0, 0}},
      {TileFormat(kU4, 32, Scale::kBF16, Offset::kMiddle), 17, 65, {6 * (256 + 32), 0, 0, 0}},
      // A half, two halves, or two floats for each row of a tile, and bytes beside the halves.
      {TileFormat(kU4, 32, Scale::kF16TimesInteger, Offset::kMinimum), 8, 64, {320, 0, 0, 0}},
      {TileFormat(kU6, 16, Scale::kF16TimesInteger, Offset::kMiddle), 8, 64, {448, 0, 0, 0}},
      {TileFormat(kS8, 16, Scale::kF16TimesInteger, Offset::kNone), 32, 64, {2304, 0, 0, 0}},
      {TileFormat(kS8, 16, Scale::kF16TimesInteger, Offset::kMinimum), 8, 64, {640, 0, 0, 0}},
      {TileFormat(kE4M3, 32, Scale::kF32, Offset::kNone), 17, 128, {6 * 576, 0, 0, 0}},
  };
  for (const Case& test : cases) {
    const PlaneBytes bytes = BytesOf(test.format, test.rows, test.cols);
    const std::string name = FormatName(test.format);
    EXPECT_EQ(bytes.data, test.bytes.data) << name;
    EXPECT_EQ(bytes.scales, test.bytes.scales) << name;
    EXPECT_EQ(bytes.offsets, test.bytes.offsets) << name;
    EXPECT_EQ(bytes.tensor_scale, test.bytes.tensor_scale) << name;
  }
  EXPECT_FALSE(FitsColumns(FormatOf(DType::kQ4_0), 48));
  EXPECT_TRUE(FitsColumns(RowMajorFormat(kU4, {1, 0}, Scale::kF32), 30));
}

TEST(WeightFormat, EveryBlockTypeHasPanels) {
  for (const WeightFormat& format : StoredFormats()) {
    if (format.layout != WeightLayout::kBlocks) continue;
    const WeightFormat panels = FormatOf(PanelDType(format.unit));
    EXPECT_EQ(panels.layout, WeightLayout::kPanels);
    EXPECT_EQ(panels.group, format.group) << FormatName(format);
    EXPECT_GE(CodeBits(panels.code), CodeBits(format.code)) << FormatName(format);
  }
  EXPECT_DEATH(PanelDType(DType::kBF16), "BF16 has no blocks");
}

}  // namespace
}  // namespace lapidary
