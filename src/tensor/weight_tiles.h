// Quantised weights as GPU kernels read them: every byte where a tensor core's operand needs it.
//
// A matrix [rows, cols] in a tile format (WeightLayout::kTiles) is stripes of kTileRows rows; a
// stripe is its units of kTileCols columns, one after the other:
//
//   uint8 codes[8][4][2][n]    row g, lane t, chunk c of 32 columns: 8 codes in n = 4 or 8 bytes
//   uint8 high[8][4][4]        of 6 bits alone: row g, lane t
//   uint8 scales[8][s]         row g: scales and offsets of its 64 columns, in s = 4, 8 or 16 bytes
//
// Lane 4 g + t of a warp reads codes[g][t] in one load: its share of two m16n8k16 A operands for
// each chunk (ops/cuda/ptx/mma.cuh). Any two stripes make the 16 rows of an operand. The 8 codes
// are columns 8 t .. 8 t + 7 of the chunk; where 16 columns share a scale, 4 t .. 4 t + 3 and 16 +
// 4 t .. 16 + 4 t + 3, so that an operand has one scale.
//
//   U4    n = 4: code 2 i in bits 4 i .. 4 i + 3 of the word, code 2 i + 1 in bits 16 + 4 i ..
//         16 + 4 i + 3
//   U6    n = 4: of each code the low 4 bits, as U4; its high 2 bits in bits 2 i, 2 i + 1 of byte c
//         of `high` for code 2 i, of byte 2 + c for code 2 i + 1
//   S8    n = 8: codes 4 i, 4 i + 2, 4 i + 1, 4 i + 3 in bytes 4 i .. 4 i + 3, each with its
//         highest bit flipped
//   E4M3  n = 8: in the same order, as they are
//
// Scales, of chunk c or its half f = 0 .. 3, for the weight of a code (tile_row.h):
//
//   W4 F16/32, W8 F16/32, BF16        half scale[2]
//   W4M F16/32                        half scale[2], minimum[2]
//   W4Z BF16/32                       half scale[2]; uint8 zero[2], 0[2]
//   W4M F16*INT/32                    half scale, minimum; uint8 scale_steps[2], minimum_steps[2]
//   W6 F16*INT/16, W8 F16*INT/16      half scale; int8 scale_steps[4]; uint8 0[2]
//   W8M F16*INT/16                    half scale[2], minimum[2]; int8 scale_steps[4];
//                                     uint8 minimum_steps[2], 0[2]
//   W8 F32/32, F8 F32/32              float scale[2]
//
// So a row of 64 columns takes 36 to 80 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/matrix_ref.h"
#include "tensor/tile_row.h"

namespace lapidary {

// Whether this header says where the bytes of a tile format lie.
bool HasTileLayout(const WeightFormat& format);

// Row `row` to its place in a matrix of `cols` columns in the format `tiles`. Rows touch no byte of
// each other's.
void StoreTileRow(const TileRow& values, const WeightFormat& tiles, int64_t row, int64_t cols,
                  std::byte* matrix);

// The floats of one row of a tiled matrix.
void UnpackTileRow(const MatrixRef& tiles, int64_t row, float* out);

}  // namespace lapidary
