// A row of a rotary table, made by a block of threads.
#pragma once

#include "ops/cuda/embedding.h"

namespace lapidary::cuda {

// The angle is a float32 product, as in the reference; its cosine comes from double precision, so
// positions far beyond 100,000 lose nothing.
__device__ __forceinline__ void FillRope(const RopeTableFill& fill, int row, int position) {
  for (int pair = threadIdx.x; pair < fill.pairs; pair += blockDim.x) {
    const float angle = __fmul_rn(static_cast<float>(position), fill.frequencies[pair]);
    double sine;
    double cosine;
    sincos(static_cast<double>(angle), &sine, &cosine);
    fill.table[int64_t{row} * RopeRowPairs(fill.pairs) + pair] =
        make_float2(static_cast<float>(cosine), static_cast<float>(sine));
  }
}

}  // namespace lapidary::cuda
