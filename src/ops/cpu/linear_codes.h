// Products of a few rows with FP8 and NVFP4, whose weights are unpacked in registers; as
// linear_blocks.h.
#pragma once

#include <cstdint>

#include "tensor/matrix_ref.h"

namespace lapidary::cpu {

// Columns [begin, end) of y = x * w^T, on the calling thread; x [rows, in], at most
// MaxRowsInRegisters() rows, w one that HasCodePieces. The chain of operations behind a value is
// Linear's with the floats that the codes stand for.
void LinearCodes(const float* x, int64_t rows, const MatrixRef& w, int64_t begin, int64_t end,
                 float* y, int64_t y_stride);

}  // namespace lapidary::cpu
