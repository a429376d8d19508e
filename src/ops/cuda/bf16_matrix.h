// Weights in the one format that today's kernels multiply with: bf16.
#pragma once

#include "base/check.h"
#include "ops/cuda/launch.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cuda {

inline bool IsBf16(const MatrixRef& matrix) { return matrix.format == WeightFormat{}; }

inline MatrixRef Bf16Matrix(const bf16* values, int rows, int cols) {
  return {.data = values, .rows = rows, .cols = cols};
}

// Anything else is our bug: whoever chooses kernels asks what they support first.
inline void CheckBf16(const MatrixRef& matrix, int rows, int cols) {
  CHECK(IsBf16(matrix)) << "weights in " << FormatName(matrix.format);
  CHECK(matrix.rows == rows && matrix.cols == cols)
      << matrix.rows << " x " << matrix.cols << ", not " << rows << " x " << cols;
}

inline const bf16* Bf16Values(const MatrixRef& matrix, int rows, int cols) {
  CheckBf16(matrix, rows, cols);
  return matrix.As<bf16>();
}
inline const bf16* Bf16Values(const MatrixRef& matrix) {
  return Bf16Values(matrix, matrix.rows, matrix.cols);
}

}  // namespace lapidary::cuda
