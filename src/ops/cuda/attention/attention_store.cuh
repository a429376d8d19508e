// The end of an item: its rows are written or, where their keys are split over several items, its
// partial results, which the last of them joins.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention/attention_combine.cuh"
#include "ops/cuda/attention/attention_form.cuh"
#include "ops/cuda/attention/attention_tile.cuh"

namespace lapidary::cuda {

// Where row `row` of the item goes.
template <typename Form>
__device__ __forceinline__ __nv_bfloat16* OutRow(const AttentionParams& params,
                                                 const AttentionTask& task, int row) {
  const AttentionItem& item = task.item;
  const int query = row / params.heads_per_kv_head;
  const int64_t query_row = task.sequence.first_query + item.query_begin + query;
  const int64_t head =
      item.kv_head * params.heads_per_kv_head + row - query * params.heads_per_kv_head;
  return params.out + (query_row * params.num_heads + head) * Form::kValueLen;
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

// Joins the splits of a tile in their order and writes the rows. A warp takes a row, so that a
// lane's columns share their weights and many loads are under way.
template <typename Form>
__device__ __noinline__ void MergeSplits(const AttentionParams& params, const AttentionTask& task) {
  constexpr int kQuads = Form::kValueLen / 128;  // groups of four columns per lane
  const AttentionItem& item = task.item;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int num_splits = item.num_splits;
  const int num_rows = item.num_queries * params.heads_per_kv_head;
  const int64_t split_floats = (num_rows + 15) / 16 * Form::kSlotFloats;
#pragma unroll 1
  for (int row = warp; row < num_rows; row += kAttentionWarps) {
    const float* slot =
        params.partials + static_cast<int64_t>(item.first_partial + row / 16) * Form::kSlotFloats;
    const float* tail = slot + kAttentionPartialRows * Form::kValueLen + row % 16;
    const float* quads = slot + row % 16 * Form::kValueLen + lane * 4;
    float maximum = -INFINITY;
    float sum = 0.0f;
    float4 total[kQuads];
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) total[quad] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int split = 0; split < num_splits; ++split) {
      const float split_maximum = __ldcg(tail);
      const float split_sum = __ldcg(tail + kAttentionPartialRows);
      float4 split_total[kQuads];
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        split_total[quad] = __ldcg(reinterpret_cast<const float4*>(quads + quad * 128));
      }
      const CombineWeights weights = WeighCombine(maximum, split_maximum);
      maximum = weights.maximum;
      sum = Combine(weights, sum, split_sum);
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        total[quad].x = Combine(weights, total[quad].x, split_total[quad].x);
        total[quad].y = Combine(weights, total[quad].y, split_total[quad].y);
        total[quad].z = Combine(weights, total[quad].z, split_total[quad].z);
        total[quad].w = Combine(weights, total[quad].w, split_total[quad].w);
      }
      tail += split_floats;
      quads += split_floats;
    }
    const float inverse = __frcp_rn(sum);
    __nv_bfloat16* out = OutRow<Form>(params, task, row);
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      __nv_bfloat162* const at =
          reinterpret_cast<__nv_bfloat162*>(out + Form::DimOf(quad * 128 + lane * 4));
      at[0] = __floats2bfloat162_rn(__fmul_rn(total[quad].x, inverse),
                                    __fmul_rn(total[quad].y, inverse));
      at[1] = __floats2bfloat162_rn(__fmul_rn(total[quad].z, inverse),
                                    __fmul_rn(total[quad].w, inverse));
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
