// Sums over disjoint keys joined into one.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention/attention_form.cuh"
#include "ops/cuda/attention/attention_tile.cuh"
#include "ops/cuda/ptx/warp_mma.cuh"

namespace lapidary::cuda {

// Two runs over disjoint keys joined: sums are weighed by `first` and `second`.
struct CombineWeights {
  float maximum;
  float first;
  float second;
};

__device__ __forceinline__ CombineWeights WeighCombine(float first_maximum, float second_maximum) {
  const float maximum = fmaxf(first_maximum, second_maximum);
  const float reference = maximum == -INFINITY ? 0.0f : maximum;
  return {maximum, Exp2(__fadd_rn(first_maximum, -reference)),
          Exp2(__fadd_rn(second_maximum, -reference))};
}

__device__ __forceinline__ float Combine(const CombineWeights& weights, float first, float second) {
  return __fmaf_rn(second, weights.second, __fmul_rn(first, weights.first));
}

// Joins an item's sums since they were cleared with the block's running totals (after what is in
// memory, `has_combined`: if anything is). They stay in registers and, with `keep_in_memory`, are
// the new running totals. `maxima`: of the rows, of what is joined. Every thread reads back what it
// wrote itself.
template <typename Shape>
__device__ __forceinline__ void CombineTotals(const AttentionLane<Shape>& lane, float* combined,
                                              const float* maxima, bool has_combined,
                                              bool keep_in_memory, RowSums<Shape>& total,
                                              float (&total_of_ones)[4]) {
  using Form = typename Shape::Form;
#pragma unroll
  for (int tile = 0; tile < Shape::kRowTiles; ++tile) {
    float* const at = combined + tile * Form::kCombineTileFloats + lane.thread;
    CombineWeights weights[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const maximum_at = at + half * kAttentionThreads;
      weights[half] = WeighCombine(has_combined ? *maximum_at : -INFINITY,
                                   maxima[tile * 16 + half * 8 + lane.row]);
      if (keep_in_memory) *maximum_at = weights[half].maximum;
      if (lane.warp == tile) {
        float* const ones_at = at + (half + 2) * kAttentionThreads;
        total_of_ones[half * 2] =
            Combine(weights[half], has_combined ? *ones_at : 0.0f, total_of_ones[half * 2]);
        if (keep_in_memory) *ones_at = total_of_ones[half * 2];
      }
    }
#pragma unroll
    for (int block = 0; block < Shape::kColumnBlocks; ++block) {
#pragma unroll
      for (int idx = 0; idx < 4; ++idx) {
        float* const total_at = at + (4 + block * 4 + idx) * kAttentionThreads;
        total[tile][block][idx] =
            Combine(weights[idx / 2], has_combined ? *total_at : 0.0f, total[tile][block][idx]);
        if (keep_in_memory) *total_at = total[tile][block][idx];
      }
    }
  }
}

}  // namespace lapidary::cuda
