// Weights repacked for products of integers (--fast-math): 16 rows of a matrix side by side, so
// that one instruction multiplies four elements of each, and scales are a vector.
//
// A panel is 16 rows; along its columns it is made of blocks of 32 elements (`in` is a multiple):
//
//   half scale[16]; (kPanel6Fine: scale[2][16], for elements 0..15 and 16..31)
//   half offset[16];                                            kPanel4Min, kPanel6Min
//   uint8 low[4][16][4]: element 4j + t of row c in the low half of low[j][c][t], 16 + 4j + t in
//         the high half                                         but kPanel8
//   uint8 top[2][16][4]: bits 4, 5 of element 16h + 4j + t of row c at bit 2j of top[h][c][t]
//                                                               kPanel6Min, kPanel6Fine
//   int8 code[8][16][4]: element 4j + t of row c                kPanel8
//
//   kPanel4                 w = scale * (code - 8)
//   kPanel4Min, kPanel6Min  w = scale * code + offset
//   kPanel6Fine             w = scale * (code - 32)
//   kPanel8                 w = scale * code
//
// Scales that are a half times a small integer (Q4_K, Q5_K, Q6_K, IQ4_XS) are rounded to a half;
// everything else is as it was.
#pragma once

#include <cstdint>

#include "tensor/matrix_ref.h"

namespace lapidary {

inline constexpr int kPanelRows = 16;
inline constexpr int kPanelBlock = 32;  // elements

// Rows [begin, end) of `w`, a block format, whole panels, to their place in a panel matrix of
// PanelDType(w.format.unit).
void RepackPanels(const MatrixRef& w, int64_t begin, int64_t end, std::byte* panels);

// The floats of one row of a panel matrix.
void UnpackPanelRow(const MatrixRef& panels, int64_t row, float* out);

}  // namespace lapidary
