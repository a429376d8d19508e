// Rows of a matrix from one format to another. Functions of bytes alone: no file, no device, any
// bytes at all as input.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/matrix_ref.h"

namespace lapidary {

// Whether RepackRows knows the way. It loses nothing, but for
//  - BF16: values are rounded to it;
//  - blocks made of codes with scales of their own, whose scales must be halves (ScalesAreHalves);
//  - panels, which round scales that are no halves (panels.h).
bool CanRepack(const WeightFormat& from, const WeightFormat& to);

// Rows [begin, end) of `from` to their place in a matrix of all its rows in the format `to`, one
// that has_dtype() or HasTileLayout(), at `out`. Rows of panels come in whole panels; tiles have
// columns in multiples of kTileCols.
void RepackRows(const MatrixRef& from, int64_t begin, int64_t end, const WeightFormat& to,
                std::byte* out);

// Whether every scale of the plane is a half.
bool ScalesAreHalves(const MatrixRef& matrix);

// The same for blocks that hold fewer values: each weight becomes the nearest one that Quantise
// gives it.
bool CanRound(const WeightFormat& from, DType to, int64_t cols);
void RoundRows(const MatrixRef& from, int64_t begin, int64_t end, DType to, std::byte* out);

// To codes of F8_E4M3 and one bf16 scale a row, as FP8 checkpoints are made: rows [begin, end) of
// `from` to their places in `codes` [rows, cols] and `scales` [rows], which need no alignment.
inline constexpr WeightFormat kRoundedFloat8{
    .code = CodeType::kE4M3, .scale = ScaleType::kBF16, .unit = DType::kF8E4M3, .group = {1, 0}};
void RoundRowsToFloat8(const MatrixRef& from, int64_t begin, int64_t end, std::byte* codes,
                       std::byte* scales);

}  // namespace lapidary
