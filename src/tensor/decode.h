// What the weights of a matrix are, exactly: the reference that repackers and kernels are tested
// against. Plain, not fast.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/matrix_ref.h"

namespace lapidary {

// A row of a format with scales, taken apart into runs of columns that share what follows. Weight
// `col` of run r = col / run_len is
//
//   scale[r] * (CodeValue(code, codes[col]) - zero[r]) + minimum[r]
//
// with the products and sums rounded one by one.
struct UnpackedRow {
  CodeType code = CodeType::kS8;  // of `codes`; those of kIq4 are looked up, and kS8 here
  int run_len = 0;
  std::vector<int16_t> codes;  // [cols]: integers, or the bits of kE4M3 and kE2M1
  std::vector<float> scale;    // [runs]
  std::vector<int> zero;       // [runs]; 0 in formats without
  std::vector<float> minimum;  // [runs]; kNoOffset in formats without
};
// Row-major and block formats.
void UnpackRow(const MatrixRef& matrix, int64_t row, UnpackedRow* out);

// What a code of 8 bits or fewer stands for.
float CodeValue(CodeType code, int bits);

// out[cols]: a row in any format but tiles.
void DecodeRow(const MatrixRef& matrix, int64_t row, float* out);
std::vector<float> DecodeMatrix(const MatrixRef& matrix);

// Scale `idx` of the plane of scales, with the tensor's own.
float ScaleAt(const MatrixRef& matrix, int64_t idx);

}  // namespace lapidary
