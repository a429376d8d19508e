// y[rows, out] = x[rows, in] * w[out, in]^T with x rounded to bf16, w bf16 as it is stored, on the
// tiles of AMX: 16 rows of w by 16 of x in one instruction.
//
// 32 elements of a row at a time: those of even and those of odd index are two chains of f32
// multiply-adds from 0, and y += (even + odd). That is all of y[r, o], so it depends on neither the
// other rows nor on how the work is cut. Denormals are taken for 0.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cpu {

// Whether the processor has the instructions and the system lets this process use them.
bool HasTiles();

// Whether `w` can be multiplied so: bf16, rows of whole 32 elements, on a machine that HasTiles.
bool FitsTiles(const MatrixRef& w);

void LinearTiles(const float* x, int64_t rows, const MatrixRef& w, float* y, int64_t y_stride,
                 ThreadPool& threads);

// The same on columns [out_begin, out_end), on the calling thread.
void LinearTileColumns(const float* x, int64_t rows, const MatrixRef& w, int64_t out_begin,
                       int64_t out_end, float* y, int64_t y_stride);

}  // namespace lapidary::cpu
