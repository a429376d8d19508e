// What both kernels of the router share: the order in which a logit is summed, which is the same
// for any number of rows.
//
// The hidden dimension is cut into chunks of 32 values, those into kRouterSlices slices of as many
// chunks. The products of a chunk are added up by tensor cores, for each part of the rows' values
// on its own; then the parts, from the smallest; then a slice's chunks in their order; then the
// slices.
#pragma once

#include "ops/cuda/moe/moe_groups.h"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {

constexpr int kRouterSlices = 8;
constexpr int kRouterStrands = 11;  // chunks of a slice, of a model that the fast kernels know
constexpr int kRouterChunk = 32;    // values of k that a MmaChunk takes
constexpr int kRouterVector = 8;    // of them, a lane's
constexpr int kHeldExperts = 128;

// Whether every slice has at most kRouterStrands chunks, and experts are not too many.
inline bool IsHeld(const MoeShape& shape) {
  return shape.num_experts <= kHeldExperts &&
         shape.hidden <= kRouterSlices * kRouterStrands * kRouterChunk;
}

struct RouterChunks {
  int all;
  int per_slice;
  __device__ __forceinline__ explicit RouterChunks(int hidden)
      : all((hidden + kRouterChunk - 1) / kRouterChunk),
        per_slice((all + kRouterSlices - 1) / kRouterSlices) {}
};

// Eight f32 values as sums of three bf16 values: 24 bits, as exact as f32 itself.
constexpr int kRouterParts = 3;
struct SplitVector {
  uint4 parts[kRouterParts];  // from the smallest to the largest

  __device__ __forceinline__ explicit SplitVector(const float (&values)[kRouterVector]) {
    float rest[kRouterVector];
#pragma unroll
    for (int idx = 0; idx < kRouterVector; ++idx) rest[idx] = values[idx];
#pragma unroll
    for (int part = kRouterParts - 1; part >= 0; --part) {
      const Bf16x8 packed = Pack(rest);
      parts[part] = reinterpret_cast<const uint4&>(packed);
      float rounded[kRouterVector];
      Unpack(packed, rounded);
#pragma unroll
      for (int idx = 0; idx < kRouterVector; ++idx) rest[idx] -= rounded[idx];
    }
  }
};

__device__ __forceinline__ void LoadFloats(const float* from, float (&values)[kRouterVector]) {
  *reinterpret_cast<float4*>(values) = *reinterpret_cast<const float4*>(from);
  *reinterpret_cast<float4*>(values + 4) = *reinterpret_cast<const float4*>(from + 4);
}

// The sum of a vector's squares, over the four lanes that have the chunk of a row.
__device__ __forceinline__ float AddSquares(const float (&values)[kRouterVector], float sum) {
#pragma unroll
  for (const float value : values) sum = __fmaf_rn(value, value, sum);
  return sum;
}
__device__ __forceinline__ float SumOverChunk(float sum) {
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  return sum;
}

// A vector of x from the residual's and the norm's weights, which become it.
__device__ __forceinline__ void NormToX(const float (&values)[kRouterVector], float inverse,
                                        float (&x)[kRouterVector]) {
#pragma unroll
  for (int idx = 0; idx < kRouterVector; ++idx) x[idx] = values[idx] * (inverse * x[idx]);
}

}  // namespace lapidary::cuda
