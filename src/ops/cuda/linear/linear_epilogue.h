// What follows a matrix product that cuBLASLt did: the same functions as the fused kernels apply,
// on a product already rounded to bf16.
#pragma once

#include "ops/cuda/launch.h"

namespace lapidary::cuda {

// product [rows, 2 * width]: y [rows, width] = gelu(left half) * right half
void RunGatedGelu(const LaunchContext& context, const bf16* product, int rows, int width, bf16* y);

// y [rows, width] = gelu(y) * multiplier (its rows `stride` apart), in place
void RunGeluMul(const LaunchContext& context, const bf16* multiplier, int64_t stride, int rows,
                int width, bf16* y);

// y = cap * tanh(y / cap), in place
void RunSoftcap(const LaunchContext& context, float cap, int64_t num_values, float* y);

}  // namespace lapidary::cuda
