// Scales of FP8 and NVFP4 (WeightFormat::is_float_codes), in the order that kernels read them.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/matrix_ref.h"

namespace lapidary::cpu {

// Rows are cut into pieces of so many columns, each of one scale.
inline constexpr int kCodePiece = 16;

// Whether a matrix is of FP8 or NVFP4 and its rows are whole pieces.
bool HasCodePieces(const MatrixRef& w);

// FP8: out[runs of a row] are the f32 scales of row `row`.
void LoadScales(const MatrixRef& w, int64_t row, float* out);
int64_t NumScales(const MatrixRef& w);

// NVFP4: what each of the codes that scales have stands for in row `row`, with the tensor's own.
using ScaleTable = std::array<float, 256>;
void MakeScaleTable(const MatrixRef& w, int64_t row, ScaleTable& table);
// Rows from `row` on that have the same table, at most to `end`.
int64_t RowsOfTable(const MatrixRef& w, int64_t row, int64_t end);

}  // namespace lapidary::cpu
