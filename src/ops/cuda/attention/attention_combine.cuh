// Sums over disjoint keys joined into one, and the splits of a tile of query rows.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention/attention_form.cuh"
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

// Joins the splits of a tile in their order and writes its rows. A warp takes a row, so that a
// lane's columns share their weights and many loads are under way.
template <typename Form>
__device__ __noinline__ void MergeSplits(const AttentionParams& params, const AttentionTask& task) {
  constexpr int kQuads = Form::kValueLen / 128;  // groups of four columns per lane
  const AttentionItem& item = task.item;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int num_rows = item.num_queries * params.heads_per_kv_head;
  const int row_tiles = (num_rows + 15) / 16;
  const int64_t split_floats = int64_t{row_tiles} * Form::kSlotFloats;
#pragma unroll 1
  for (int row = warp; row < num_rows; row += kAttentionWarps) {
    const float* const slot =
        params.partials + int64_t{item.first_partial + row / 16} * Form::kSlotFloats;
    const float* tail = slot + kAttentionPartialRows * Form::kValueLen + row % 16;
    const float* quads = slot + row % 16 * Form::kValueLen + lane * 4;
    float maximum = -INFINITY;
    float sum = 0.0f;
    float4 total[kQuads];
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) total[quad] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int split = 0; split < item.num_splits; ++split) {
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
}  // namespace lapidary::cuda
