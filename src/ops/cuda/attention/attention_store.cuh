// The end of a piece or an item: sums join the running totals; rows are written or, where their
// keys are split over several items, partial results, which the last of them joins.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention/attention_combine.cuh"
#include "ops/cuda/attention/attention_form.cuh"
#include "ops/cuda/attention/attention_tile.cuh"

namespace lapidary::cuda {

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

// The rows of an item that has all of their keys. `sums`: of P, of each row.
template <typename Shape>
__device__ __forceinline__ void StoreRows(const AttentionParams& params, const AttentionTask& task,
                                          const AttentionLane<Shape>& at, int num_rows,
                                          const float* sums, const RowSums<Shape>& total) {
  using Form = typename Shape::Form;
#pragma unroll
  for (int row_tile = 0; row_tile < Shape::kRowTiles; ++row_tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_tile * 16 + half * 8 + at.row;
      if (row < num_rows) {
        const float inverse = __frcp_rn(sums[row]);
        __nv_bfloat16* out =
            OutRow<Form>(params, task, row) + Form::DimOf(at.warp * Form::kWarpColumns) + at.column;
#pragma unroll
        for (int block = 0; block < Shape::kColumnBlocks; ++block) {
          *reinterpret_cast<__nv_bfloat162*>(out + block * 8) =
              __floats2bfloat162_rn(__fmul_rn(total[row_tile][block][half * 2], inverse),
                                    __fmul_rn(total[row_tile][block][half * 2 + 1], inverse));
        }
      }
    }
  }
}

// An item's partial results, a slot for each 16 rows: sums of P V [16, kValueLen], the rows' maxima
// [16] and their sums of P [16].
template <typename Shape>
__device__ __forceinline__ void StorePartials(const AttentionParams& params,
                                              const AttentionItem& item,
                                              const AttentionLane<Shape>& at, int num_rows,
                                              const float* maxima, const float* sums,
                                              const RowSums<Shape>& total) {
  using Form = typename Shape::Form;
  const int row_tiles = (num_rows + 15) / 16;
#pragma unroll
  for (int row_tile = 0; row_tile < Shape::kRowTiles; ++row_tile) {
    float* const slot = params.partials + static_cast<int64_t>(item.first_partial +
                                                               item.split * row_tiles + row_tile) *
                                              Form::kSlotFloats;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + at.row;
      if (row_tile * 16 + row < num_rows) {
        float* const to = slot + row * Form::kValueLen + at.warp * Form::kWarpColumns + at.column;
#pragma unroll
        for (int block = 0; block < Shape::kColumnBlocks; ++block) {
          *reinterpret_cast<float2*>(to + block * 8) =
              make_float2(total[row_tile][block][half * 2], total[row_tile][block][half * 2 + 1]);
        }
        if (at.warp == 0 && at.lane % 4 == 0) {
          float* const tail = slot + kAttentionPartialRows * Form::kValueLen + row;
          tail[0] = maxima[row_tile * 16 + row];
          tail[kAttentionPartialRows] = sums[row_tile * 16 + row];
        }
      }
    }
  }
}

// After StorePartials: whoever arrives last sees all splits and joins them.
template <typename Form>
__device__ __forceinline__ void FinishSplit(const AttentionParams& params, AttentionTask& task,
                                            int thread) {
  const AttentionItem& item = task.item;
  __threadfence();
  __syncthreads();
  if (thread == 0) {
    const int32_t before = atomicAdd(params.counters + item.first_partial, 1);
    task.is_last_split = before == item.num_splits - 1;
  }
  __syncthreads();
  if (task.is_last_split == 0) return;
  __threadfence();
  MergeSplits<Form>(params, task);
  if (thread == 0) params.counters[item.first_partial] = 0;
}

}  // namespace lapidary::cuda
