// Quantised weights as GPU kernels read them: every byte where a tensor core's operand needs it.
//
// A matrix [rows, cols] in a tile format (WeightLayout::kTiles) is stripes of kTileRows rows; a
// stripe is its units of kTileCols columns, one after the other, each with its scales:
//
//   uint8 codes[8][4][2][n]    row g, quarter t, chunk c of 32 columns: the codes of columns
//                              32 c + 8 t .. 32 c + 8 t + 7, in n = 4 or 8 bytes
//   half scales[8][2]          row g, chunk c: f16 or bf16 bits
//
// Lane 4 g + t of a warp reads codes[g][t] in one load: its share of two m16n8k16 A operands for
// each chunk (ops/cuda/ptx/mma.cuh). Any two stripes make the 16 rows of an operand.
//
//   U4  n = 4: column 2 i in bits 4 i .. 4 i + 3 of the word, column 2 i + 1 in bits
//       16 + 4 i .. 16 + 4 i + 3;  w = scale * (code - 8)
//   S8  n = 8: columns 4 i, 4 i + 2, 4 i + 1, 4 i + 3 in bytes 4 i .. 4 i + 3, each with its
//       highest bit flipped;  w = scale * code
//
// So a row of 64 columns takes 36 or 68 bytes. Multiplying scale and code in f32 gives the weight's
// exact value: 11 bits of scale, at most 8 of code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/matrix_ref.h"
#include "tensor/tile_row.h"

namespace lapidary {

inline constexpr int kTileGroup = 32;  // columns that share a scale

// Whether this header says where the bytes of a tile format lie.
bool HasTileLayout(const WeightFormat& format);

// Row `row` to its place in a matrix of `cols` columns in the format `tiles`. Rows touch no byte of
// each other's.
void StoreTileRow(const TileRow& values, const WeightFormat& tiles, int64_t row, int64_t cols,
                  std::byte* matrix);

// The floats of one row of a tiled matrix.
void UnpackTileRow(const MatrixRef& tiles, int64_t row, float* out);

}  // namespace lapidary
