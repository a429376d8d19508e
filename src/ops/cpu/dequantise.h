// Rows of formats with scales as floats, with vector instructions; the values of tensor/decode.h,
// exactly, but that a zero may have another sign.
#pragma once

#include <cstdint>

#include "tensor/matrix_ref.h"

namespace lapidary::cpu {

// out [count, w.cols]: the rows [first, first + count) of a matrix in blocks, of FP8 or of NVFP4.
void DequantiseRows(const MatrixRef& w, int64_t first, int64_t count, float* out);

}  // namespace lapidary::cpu
