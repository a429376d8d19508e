#include "tensor/weight_format.h"

#include <fmt/format.h>

#include "base/check.h"

namespace lapidary {
namespace {

using enum CodeType;
using enum WeightLayout;
using Scale = ScaleType;
using Offset = OffsetType;

struct TypeRow {
  DType dtype;
  CodeType code;
  int group_cols;
  Scale scale;
  Offset offset;
  WeightLayout layout;
  DType panels;  // what a block type becomes there; itself: nothing
};

// Every type that a weight of its own may have, in the order of DType's blocks.
constexpr TypeRow kTypes[] = {
    {DType::kF32, kF32, 0, Scale::kNone, Offset::kNone, kRowMajor, DType::kF32},
    {DType::kF16, kF16, 0, Scale::kNone, Offset::kNone, kRowMajor, DType::kF16},
    {DType::kBF16, kBF16, 0, Scale::kNone, Offset::kNone, kRowMajor, DType::kBF16},
    {DType::kQ4_0, kU4, 32, Scale::kF16, Offset::kMiddle, kBlocks, DType::kPanel4},
    {DType::kQ4_1, kU4, 32, Scale::kF16, Offset::kMinimum, kBlocks, DType::kPanel4Min},
    {DType::kQ5_0, kU5, 32, Scale::kF16, Offset::kMiddle, kBlocks, DType::kPanel6Min},
    {DType::kQ5_1, kU5, 32, Scale::kF16, Offset::kMinimum, kBlocks, DType::kPanel6Min},
    {DType::kQ8_0, kS8, 32, Scale::kF16, Offset::kNone, kBlocks, DType::kPanel8},
    {DType::kQ4_K, kU4, 32, Scale::kF16TimesInteger, Offset::kMinimum, kBlocks, DType::kPanel4Min},
    {DType::kQ5_K, kU5, 32, Scale::kF16TimesInteger, Offset::kMinimum, kBlocks, DType::kPanel6Min},
    {DType::kQ6_K, kU6, 16, Scale::kF16TimesInteger, Offset::kMiddle, kBlocks, DType::kPanel6Fine},
    {DType::kIQ4_NL, kIq4, 32, Scale::kF16, Offset::kNone, kBlocks, DType::kPanel8},
    {DType::kIQ4_XS, kIq4, 32, Scale::kF16TimesInteger, Offset::kNone, kBlocks, DType::kPanel8},
    {DType::kPanel4, kU4, 32, Scale::kF16, Offset::kMiddle, kPanels, DType::kPanel4},
    {DType::kPanel4Min, kU4, 32, Scale::kF16, Offset::kMinimum, kPanels, DType::kPanel4Min},
    {DType::kPanel6Min, kU6, 32, Scale::kF16, Offset::kMinimum, kPanels, DType::kPanel6Min},
    {DType::kPanel6Fine, kU6, 16, Scale::kF16, Offset::kMiddle, kPanels, DType::kPanel6Fine},
    {DType::kPanel8, kS8, 32, Scale::kF16, Offset::kNone, kPanels, DType::kPanel8},
};

const TypeRow& RowOf(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row;
  }
  CHECK(false) << "weights are never " << DTypeName(dtype);
  return kTypes[0];
}

const char* CodeName(CodeType code) {
  constexpr const char* kNames[] = {"F32", "F16", "BF16", "F8_E4M3", "E2M1", "IQ4",
                                    "U4",  "U5",  "U6",   "U8",      "S8"};
  return kNames[static_cast<int>(code)];
}

const char* ScaleName(Scale scale) {
  constexpr const char* kNames[] = {"",        "F32",         "F16",        "BF16",
                                    "F16*INT", "F8_E4M3*F32", "F8_E4M3/F32"};
  return kNames[static_cast<int>(scale)];
}

std::string TileName(const WeightFormat& format) {
  const char* codes = format.code == kE4M3 ? "F8"
                      : format.code == kU4 ? "W4"
                      : format.code == kU6 ? "W6"
                                           : "W8";
  const char* offset = format.offset == Offset::kMinimum     ? "M"
                       : format.offset == Offset::kZeroPoint ? "Z"
                                                             : "";
  return fmt::format("{}{} {}/{}", codes, offset, ScaleName(format.scale), format.group.cols);
}

int64_t CeilDiv(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// Of scales and offsets of a row in a tile: those of two groups of 32 columns, or four of 16.
int TileScaleBytes(const WeightFormat& format) {
  const bool has_offsets = format.offset == Offset::kMinimum || format.offset == Offset::kZeroPoint;
  switch (format.scale) {
    case Scale::kF16:
    case Scale::kBF16:
      return has_offsets ? 8 : 4;
    case Scale::kF16TimesInteger:
      return has_offsets && format.group.cols == 16 ? 16 : 8;
    default:
      return 8;
  }
}

int64_t OffsetBytes(const WeightFormat& format, int64_t rows, const ScaleGrid& grid) {
  switch (format.offset) {
    case Offset::kNone:
    case Offset::kMiddle:
      return 0;
    case Offset::kMinimum:
      return grid.rows * grid.cols * ScaleBytes(format.scale);
    case Offset::kZeroPoint:
      // Words of 32 bits with the codes of consecutive rows, as compressed-tensors has them.
      return CeilDiv(rows * CodeBits(format.code), 32) * 4 * grid.cols;
  }
  return 0;
}

}  // namespace

int CodeBits(CodeType code) {
  constexpr int kBits[] = {32, 16, 16, 8, 4, 4, 4, 5, 6, 8, 8};
  return kBits[static_cast<int>(code)];
}

int ScaleBytes(Scale scale) {
  constexpr int kBytes[] = {0, 4, 2, 2, 0, 1, 1};  // Of kF16TimesInteger only a block knows.
  return kBytes[static_cast<int>(scale)];
}

bool WeightFormat::has_scale_plane() const { return has_scales() && layout == kRowMajor; }

WeightFormat FormatOf(DType dtype) {
  const TypeRow& row = RowOf(dtype);
  return {.code = row.code,
          .scale = row.scale,
          .offset = row.offset,
          .layout = row.layout,
          .unit = dtype,
          .group = {row.scale == Scale::kNone ? 0 : 1, row.group_cols}};
}

WeightFormat RowMajorFormat(CodeType code, WeightGroup group, Scale scale, Offset offset) {
  CHECK(scale != Scale::kNone && scale != Scale::kF16TimesInteger);
  CHECK(offset != Offset::kMinimum);
  const DType unit = code == kS8     ? DType::kI8
                     : code == kE4M3 ? DType::kF8E4M3
                     : code == kE2M1 ? DType::kU8
                                     : DType::kI32;
  CHECK(CodeBits(code) == 4 || CodeBits(code) == 8) << CodeName(code);
  return {.code = code,
          .scale = scale,
          .offset = offset,
          .layout = kRowMajor,
          .unit = unit,
          .group = group};
}

WeightFormat TileFormat(CodeType code, int group_cols, Scale scale, Offset offset) {
  CHECK(code == kU4 || code == kU6 || code == kS8 || code == kE4M3) << CodeName(code);
  CHECK(scale == Scale::kF32 || scale == Scale::kF16 || scale == Scale::kBF16 ||
        scale == Scale::kF16TimesInteger)
      << ScaleName(scale);
  CHECK(group_cols == 16 || group_cols == 32) << group_cols;
  return {.code = code,
          .scale = scale,
          .offset = offset,
          .layout = kTiles,
          .unit = DType::kU8,
          .group = {1, group_cols}};
}

std::string FormatName(const WeightFormat& format) {
  if (format.layout == kBlocks || format.layout == kPanels || format.is_plain()) {
    return DTypeName(format.unit);
  }
  if (format.layout == kTiles) return TileName(format);
  const auto count = [](int value) { return value == 0 ? "all" : std::to_string(value); };
  std::string name = fmt::format("{} {}/{}x{}", CodeName(format.code), ScaleName(format.scale),
                                 count(format.group.rows), count(format.group.cols));
  if (format.offset == Offset::kZeroPoint) name += " zero points";
  return name;
}

ScaleGrid ScaleGridOf(const WeightFormat& format, int64_t rows, int64_t cols) {
  if (!format.has_scales()) return {};
  const WeightGroup& group = format.group;
  return {group.rows == 0 ? 1 : CeilDiv(rows, group.rows),
          group.cols == 0 ? 1 : CeilDiv(cols, group.cols)};
}

bool FitsColumns(const WeightFormat& format, int64_t cols) {
  return !format.has_dtype() || cols % BlockOf(format.unit).elements == 0;
}

int64_t RowBytes(const WeightFormat& format, int64_t cols) {
  if (format.has_dtype()) return DTypeBytes(format.unit, cols);
  if (format.layout == kTiles) {
    return CeilDiv(cols, kTileCols) *
           (kTileCols * CodeBits(format.code) / 8 + TileScaleBytes(format));
  }
  const int64_t unit_bytes = DTypeSize(format.unit);
  return CeilDiv(cols * CodeBits(format.code), 8 * unit_bytes) * unit_bytes;
}

PlaneBytes BytesOf(const WeightFormat& format, int64_t rows, int64_t cols) {
  const int64_t whole_rows = format.layout == kTiles ? CeilDiv(rows, kTileRows) * kTileRows : rows;
  PlaneBytes bytes;
  bytes.data = whole_rows * RowBytes(format, cols);
  if (!format.has_scale_plane()) return bytes;
  const ScaleGrid grid = ScaleGridOf(format, rows, cols);
  bytes.scales = grid.rows * grid.cols * ScaleBytes(format.scale);
  bytes.offsets = OffsetBytes(format, rows, grid);
  const bool has_tensor_scale =
      format.scale == Scale::kE4M3TimesTensors || format.scale == Scale::kE4M3OverTensors;
  if (has_tensor_scale) {
    bytes.tensor_scale = format.tensor_rows == 0 ? 4 : 4 * CeilDiv(rows, format.tensor_rows);
  }
  return bytes;
}

DType PanelDType(DType block) {
  const TypeRow& row = RowOf(block);
  CHECK(row.layout == kBlocks) << DTypeName(block) << " has no blocks";
  return row.panels;
}

}  // namespace lapidary
