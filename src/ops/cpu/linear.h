// y[rows, out] = x[rows, in] * w[out, in]^T, the only matrix product the CPU executor needs.
//
//   x [rows, in] f32, row stride in;  w [out, in] bf16, f16, f32, a block format, FP8 or NVFP4
//   (WeightFormat::is_float_codes) or panels (linear_panels.h);  y [rows, out] f32, row stride
//   given
//
// Weights are read in their stored type and widened in registers; those with scales, where more
// than a few rows use them, some columns at a time in the cache. Each is streamed once per
// block of rows, and a block is the whole batch for all but the widest decode steps. y[r, o] is one
// fixed chain of operations over row r and weight row o: it does not depend on the other rows, on
// tiling or on the number of threads (batch invariant, bitwise).
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cpu {

// What is done to x where weights are bf16 (others do not ask). kTiles: it is rounded to bf16 where
// the machine has AMX (linear_tiles.h), and stays as it is elsewhere.
enum class Bf16Math { kExact, kTiles };

void Linear(const float* x, int64_t rows, const MatrixRef& w, float* y, int64_t y_stride,
            ThreadPool& threads, Bf16Math bf16_math = Bf16Math::kExact);

// The same on columns [out_begin, out_end) of y, on the calling thread; for callers that split the
// work themselves (experts).
void LinearColumns(const float* x, int64_t rows, const MatrixRef& w, int64_t out_begin,
                   int64_t out_end, float* y, int64_t y_stride,
                   Bf16Math bf16_math = Bf16Math::kExact);

}  // namespace lapidary::cpu
