// Row-wise vector operations on f32, single-threaded: callers split rows over threads.
//
// Every function treats a row by a fixed chain of operations that depends on its length alone, so a
// row's result never depends on its neighbours.
#pragma once

#include <cstdint>

#include "tensor/matrix_ref.h"

namespace lapidary::cpu {

// y = x * rsqrt(mean(x^2) + eps) * w   (plain w, never 1 + w; w may be null: no weight). y may
// alias x.
void RmsNorm(const float* x, const float* w, float eps, int64_t dim, float* y);

// h = (h + rmsnorm(x; w)) * scale
void AddRmsNorm(const float* x, const float* w, float eps, int64_t dim, float scale, float* h);

// y = a * x, y may alias x.
void Scale(const float* x, float a, int64_t dim, float* y);

// gate = gelu_tanh(gate) * up
void GeluMul(float* gate, const float* up, int64_t dim);

// x = cap * tanh(x / cap)
void Softcap(float* x, float cap, int64_t dim);

// x = exp(x - max(x)); returns the sum.
float ExpMinusMax(float* x, int64_t dim);

// acc += a * x
void MulAddTo(const float* x, float a, int64_t dim, float* acc);

// y = a * table[row] for a table [rows, dim] in any format that Linear reads.
void GatherRow(const MatrixRef& table, int64_t row, float a, float* y);

}  // namespace lapidary::cpu
