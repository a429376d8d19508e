// Small device helpers: 16-byte vectors of bf16 and sums over a warp or a block.
//
// All sums are butterflies or fixed trees: the same inputs give the same bits on every run.
#pragma once

#include "ops/cuda/launch.h"

namespace lapidary::cuda {

inline constexpr int kWarpSize = 32;

// Eight bf16 values in one 16-byte access.
struct alignas(16) Bf16x8 {
  __nv_bfloat162 pairs[4];
};

__device__ __forceinline__ void Unpack(const Bf16x8& packed, float (&values)[8]) {
#pragma unroll
  for (int idx = 0; idx < 4; ++idx) {
    const float2 pair = __bfloat1622float2(packed.pairs[idx]);
    values[2 * idx] = pair.x;
    values[2 * idx + 1] = pair.y;
  }
}

__device__ __forceinline__ Bf16x8 Pack(const float (&values)[8]) {
  Bf16x8 packed;
#pragma unroll
  for (int idx = 0; idx < 4; ++idx) {
    packed.pairs[idx] = __floats2bfloat162_rn(values[2 * idx], values[2 * idx + 1]);
  }
  return packed;
}

__device__ __forceinline__ void Load8(const bf16* from, float (&values)[8]) {
  Unpack(*reinterpret_cast<const Bf16x8*>(from), values);
}

__device__ __forceinline__ void Store8(bf16* to, const float (&values)[8]) {
  *reinterpret_cast<Bf16x8*>(to) = Pack(values);
}

__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

}  // namespace lapidary::cuda
