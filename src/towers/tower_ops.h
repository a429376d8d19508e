// Operations that encoders need beside those of the decoder: clipped products, the norms they use,
// plain loops.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "towers/tower_tensors.h"

namespace lapidary::cpu {

// y [rows, out] = the clipped product of x [rows, in].
std::vector<float> ClippedLinear(const std::vector<float>& x, int64_t rows,
                                 const ClippedMatrix& matrix, ThreadPool& threads);

// y [rows, out] = x W^T
std::vector<float> PlainLinear(const std::vector<float>& x, int64_t rows, const MatrixRef& matrix,
                               ThreadPool& threads);

// Rows of rmsnorm(x; weight); no weight where it is empty.
std::vector<float> NormRows(const std::vector<float>& x, const std::vector<float>& weight,
                            float eps, int64_t dim);

// x = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, one row; no bias where it is null.
void LayerNorm(float* x, const float* weight, const float* bias, float eps, int64_t dim);

// x = x * sigmoid(x)
void Silu(std::vector<float>& x);

}  // namespace lapidary::cpu
