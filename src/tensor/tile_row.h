// Rows of stored matrices as tiles on a device hold them: which tile format takes a stored one
// without loss, and the codes, scales and minima of a row there. Where they lie in a tile is the
// device's to say; here is what they are. Functions of bytes alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tensor/matrix_ref.h"

namespace lapidary {

// The tile format that holds every weight of a stored format with scales. The scale keeps its type;
// what is a product (a block's half times an integer, NVFP4's two) or has a minimum made of a zero
// point becomes f32. Codes of 5 and 6 bits, and IQ4's values, take 8. None: no tile does (groups
// that are no multiple of 16 columns, and f32 scales with 8-bit zero points).
std::optional<WeightFormat> TileFormatFor(const WeightFormat& stored);

// w = scale[g] * (code - middle) + minimum[g], g = col / group columns, rounded one by one in f32;
// middle is 8 of kU4 with OffsetType::kMiddle and 0 elsewhere, minimum 0 of formats without.
struct TileRow {
  std::vector<uint8_t> codes;  // [cols]: 4 bits, or the bits of a signed or F8_E4M3 byte
  std::vector<float> scale;    // [groups], each a value of the format's scale type
  std::vector<float> minimum;  // [groups]; empty in formats without
};
// Row `row` in `tiles`, which is TileFormatFor(matrix.format), its scale kept or widened to f32.
void MakeTileRow(const MatrixRef& matrix, int64_t row, const WeightFormat& tiles, TileRow* out);

// Weight `col` of such a row: what kernels are tested against.
float TileWeight(const WeightFormat& tiles, const TileRow& row, int64_t col);

}  // namespace lapidary
