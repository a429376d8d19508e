// The residual update of one row, as arithmetic that several kernels share.
//
// A row is always summed by kNormThreads threads in one order (thread i takes elements
// 4 (i + n kNormThreads) + 0..3), with every rounding spelled out, so that a row has the same bits
// wherever it is computed.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/launch.h"

namespace lapidary::cuda {

constexpr int kNormThreads = 256;
constexpr int kNormWarps = kNormThreads / 32;

// use(which of the thread's, quad) for the quads of a row that are a thread's.
template <int kQuads, typename Use>
__device__ __forceinline__ void ForEachQuad(int thread, int num_quads, const Use& use) {
#pragma unroll
  for (int idx = 0; idx < kQuads; ++idx) {
    const int quad = thread + idx * kNormThreads;
    if (quad < num_quads) use(idx, quad);
  }
}

__device__ __forceinline__ float AddSquares(float sum, float4 v) {
  sum = __fmaf_rn(v.x, v.x, sum);
  sum = __fmaf_rn(v.y, v.y, sum);
  sum = __fmaf_rn(v.z, v.z, sum);
  return __fmaf_rn(v.w, v.w, sum);
}

// The sum over all threads of the block, the same in each. `scratch` holds kNormWarps floats and is
// free for the next call once every thread has returned from a call with another scratch.
__device__ __forceinline__ float BlockSum(float value, float* scratch) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = scratch[0];
#pragma unroll
  for (int warp = 1; warp < kNormWarps; ++warp) sum = __fadd_rn(sum, scratch[warp]);
  return sum;
}

__device__ __forceinline__ float InverseRms(float sum_of_squares, int dim, float eps) {
  return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(sum_of_squares, static_cast<float>(dim)), eps)));
}

__device__ __forceinline__ float Normed(float value, float inverse_rms, float weight) {
  return __fmul_rn(__fmul_rn(value, inverse_rms), weight);
}

__device__ __forceinline__ float4 Normed(float4 v, float inverse_rms, float4 weight) {
  return {Normed(v.x, inverse_rms, weight.x), Normed(v.y, inverse_rms, weight.y),
          Normed(v.z, inverse_rms, weight.z), Normed(v.w, inverse_rms, weight.w)};
}

// (h + addend) * scale
__device__ __forceinline__ float4 Updated(float4 h, float4 addend, float scale) {
  return {__fmul_rn(__fadd_rn(h.x, addend.x), scale), __fmul_rn(__fadd_rn(h.y, addend.y), scale),
          __fmul_rn(__fadd_rn(h.z, addend.z), scale), __fmul_rn(__fadd_rn(h.w, addend.w), scale)};
}

// A row in a block's registers, kQuads groups of four values to a thread (zeros behind its end):
// h = (h + rmsnorm(addend) * weight) * scale. `scratch`: BlockSum's.
template <int kQuads>
__device__ __forceinline__ void AddNormedRow(float4 (&h)[kQuads], const float4 (&addend)[kQuads],
                                             const float4 (&weight)[kQuads], float scale, int dim,
                                             float eps, float* scratch) {
  float sum = 0.0f;
#pragma unroll
  for (int n = 0; n < kQuads; ++n) sum = AddSquares(sum, addend[n]);
  const float inverse_rms = InverseRms(BlockSum(sum, scratch), dim, eps);
#pragma unroll
  for (int n = 0; n < kQuads; ++n) {
    h[n] = Updated(h[n], Normed(addend[n], inverse_rms, weight[n]), scale);
  }
}
// h = rmsnorm(h) * weight
template <int kQuads>
__device__ __forceinline__ void NormRow(float4 (&h)[kQuads], const float4 (&weight)[kQuads],
                                        int dim, float eps, float* scratch) {
  float sum = 0.0f;
#pragma unroll
  for (int n = 0; n < kQuads; ++n) sum = AddSquares(sum, h[n]);
  const float inverse_rms = InverseRms(BlockSum(sum, scratch), dim, eps);
#pragma unroll
  for (int n = 0; n < kQuads; ++n) h[n] = Normed(h[n], inverse_rms, weight[n]);
}

// Four bf16 values as they lie in memory.
__device__ __forceinline__ float4 UnpackBf16x4(uint2 words) {
  return {__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000u),
          __uint_as_float(words.y << 16), __uint_as_float(words.y & 0xffff0000u)};
}

__device__ __forceinline__ uint32_t PackBf16x2(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ uint2 PackBf16x4(float4 v) {
  return {PackBf16x2(v.x, v.y), PackBf16x2(v.z, v.w)};
}

}  // namespace lapidary::cuda
