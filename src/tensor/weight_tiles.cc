#include "tensor/weight_tiles.h"

#include <cstring>

#include "base/check.h"

namespace lapidary {
namespace {

bool Is4Bit(const WeightFormat& format) { return format.code == CodeType::kU4; }

// Where the code of a column of a unit lies: a byte of the stripe's unit, and the first bit in it.
struct CodePlace {
  int byte;
  int shift;
};
CodePlace PlaceOf(bool is_4bit, int row, int col) {
  const int chunk = col / kTileGroup;
  const int quarter = col % kTileGroup / 8;
  const int idx = col % 8;
  const int lane_chunk = (row * 4 + quarter) * 2 + chunk;
  if (is_4bit) {
    const int bit = 16 * (idx % 2) + 4 * (idx / 2);
    return {.byte = lane_chunk * 4 + bit / 8, .shift = bit % 8};
  }
  constexpr int kByteOf[4] = {0, 2, 1, 3};
  return {.byte = lane_chunk * 8 + idx / 4 * 4 + kByteOf[idx % 4], .shift = 0};
}

int64_t UnitBytes(const WeightFormat& format) { return RowBytes(format, kTileCols) * kTileRows; }
int64_t CodeBytes(const WeightFormat& format) {
  return int64_t{kTileRows} * kTileCols * CodeBits(format.code) / 8;
}
// In a unit, of a row and a chunk.
int64_t ScalePlace(const WeightFormat& format, int row, int chunk) {
  return CodeBytes(format) + (row * 2 + chunk) * 2;
}

}  // namespace

bool HasTileLayout(const WeightFormat& format) {
  const bool has_codes = (format.code == CodeType::kU4 && format.offset == OffsetType::kMiddle) ||
                         (format.code == CodeType::kS8 && format.offset == OffsetType::kNone);
  return format.layout == WeightLayout::kTiles && has_codes &&
         format.group == WeightGroup{1, kTileGroup} &&
         (format.scale == ScaleType::kF16 || format.scale == ScaleType::kBF16);
}

void StoreTileRow(const TileRow& values, const WeightFormat& tiles, int64_t row, int64_t cols,
                  std::byte* matrix) {
  CHECK(HasTileLayout(tiles) && cols % kTileCols == 0) << FormatName(tiles) << " of " << cols;
  const bool is_4bit = Is4Bit(tiles);
  auto* const stripe =
      reinterpret_cast<uint8_t*>(matrix) + row / kTileRows * kTileRows * RowBytes(tiles, cols);
  const int lane_row = static_cast<int>(row % kTileRows);
  for (int64_t col = 0; col < cols; ++col) {
    uint8_t* const unit = stripe + col / kTileCols * UnitBytes(tiles);
    const int unit_col = static_cast<int>(col % kTileCols);
    const CodePlace at = PlaceOf(is_4bit, lane_row, unit_col);
    const uint8_t code = is_4bit ? values.codes[col] & 0xf : values.codes[col] ^ 0x80;
    // The low half of a byte is written first and clears the high one.
    if (at.shift == 0) {
      unit[at.byte] = code;
    } else {
      unit[at.byte] |= static_cast<uint8_t>(code << at.shift);
    }
    if (col % kTileGroup != 0) continue;
    const float scale = values.scale[col / kTileGroup];
    const uint16_t bits = tiles.scale == ScaleType::kF16 ? FloatToF16(scale) : FloatToBf16(scale);
    std::memcpy(unit + ScalePlace(tiles, lane_row, unit_col / kTileGroup), &bits, sizeof(bits));
  }
}

void UnpackTileRow(const MatrixRef& tiles, int64_t row, float* out) {
  CHECK(HasTileLayout(tiles.format)) << FormatName(tiles.format);
  const bool is_4bit = Is4Bit(tiles.format);
  const int lane_row = static_cast<int>(row % kTileRows);
  const auto* stripe = tiles.As<uint8_t>() + row / kTileRows * kTileRows * tiles.row_bytes();
  for (int col = 0; col < tiles.cols; ++col) {
    const uint8_t* unit = stripe + col / kTileCols * UnitBytes(tiles.format);
    const int unit_col = col % kTileCols;
    const CodePlace at = PlaceOf(is_4bit, lane_row, unit_col);
    const uint8_t bits = unit[at.byte];
    const int code = is_4bit ? ((bits >> at.shift) & 0xf) - 8 : static_cast<int8_t>(bits ^ 0x80);
    uint16_t scale = 0;
    std::memcpy(&scale, unit + ScalePlace(tiles.format, lane_row, unit_col / kTileGroup), 2);
    out[col] = (tiles.format.scale == ScaleType::kF16 ? F16ToFloat(scale) : Bf16ToFloat(scale)) *
               static_cast<float>(code);
  }
}

}  // namespace lapidary
