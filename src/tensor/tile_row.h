// Which format of the GPU's tiles (weight_tiles.h) holds the weights of a stored matrix without
// loss, and the codes, scales and offsets of a row in it. Functions of bytes alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tensor/matrix_ref.h"

namespace lapidary {

inline constexpr int kTileGroup = 32;      // columns that share a scale or an offset
inline constexpr int kFineTileGroup = 16;  // columns that share a scale where groups are finer

// The format of tiles with the fewest bits that holds every weight of a stored format. None: no
// tile does (E2M1, 8-bit codes with zero points, groups that are no multiple of 32 columns).
//
//   stored                                   tiles
//   Q4_0, symmetric W4 with 16-bit scales    W4 F16/32, W4 BF16/32
//   Q4_1                                     W4M F16/32
//   Q4_K                                     W4M F16*INT/32
//   W4 with zero points, scales in bf16      W4Z BF16/32
//   Q5_0, Q8_0, IQ4_NL, W8 with 16-bit scales, W4 with zero points and scales in f16
//                                            W8 F16/32, W8 BF16/32
//   Q6_K                                     W6 F16*INT/16
//   IQ4_XS                                   W8 F16*INT/16
//   Q5_1, Q5_K                               W8M F16*INT/16
//   W4 and W8 with scales in f32             W8 F32/32
//   F8_E4M3                                  F8 F32/32
std::optional<WeightFormat> TileFormatFor(const WeightFormat& stored);

// The format of tiles with the fewest bits that holds what either holds; matrices that are
// multiplied as one need it. None: no tile does.
std::optional<WeightFormat> CommonTiles(const WeightFormat& one, const WeightFormat& other);

// Whether tiles hold every weight of a stored format.
bool TilesHold(const WeightFormat& tiles, const WeightFormat& stored);

// Weight `col` of a row, with c = col / 32 and f = col / 16, in f32:
//
//   (scale[c] * scale_steps[f]) * code + minimum[c] * minimum_steps[c]
//   scale[c] * (code - minimum_steps[c])                                 OffsetType::kZeroPoint
//
// where codes of OffsetType::kMiddle are less 8, or less 32 of 6 bits.
struct TileRow {
  std::vector<uint8_t> codes;  // [cols]: 4 or 6 bits, or the bits of a signed or an F8_E4M3 byte
  std::vector<float> scale;    // [chunks of 32], each a value of the scale's type
  std::vector<float> minimum;  // [chunks], of OffsetType::kMinimum: halves
  // Of ScaleType::kF16TimesInteger; minimum_steps of OffsetType::kZeroPoint, too.
  std::vector<int8_t> scale_steps;     // [chunks of 16]
  std::vector<uint8_t> minimum_steps;  // [chunks]
};
// Row `row` in `tiles`, which hold the matrix's format.
void MakeTileRow(const MatrixRef& matrix, int64_t row, const WeightFormat& tiles, TileRow* out);

// Weight `col` of such a row: what kernels are tested against.
float TileWeight(const WeightFormat& tiles, const TileRow& row, int64_t col);

}  // namespace lapidary
