// The input of a product as digits (resident_digits.h): how a block's warps make them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/resident/resident_digits.h"
#include "ops/cuda/tile_type.h"

namespace lapidary::cuda {

// max(|a|, |b|); a NaN if one is.
__device__ __forceinline__ float LargerSize(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(a)), "f"(fabsf(b)));
  return larger;
}

__device__ __forceinline__ void StoreShared8(uint32_t shared_address, uint32_t low, uint32_t high) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(shared_address), "r"(low), "r"(high)
               : "memory");
}

__device__ __forceinline__ void StoreShared4(uint32_t shared_address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared_address), "f"(value) : "memory");
}

// Quads of values first, first + stride, ... of an input of num_quads; zeros behind its end. All
// lanes of a warp, with neighbouring quads, the first a multiple of 32. `format`: of the weights.
template <int kCount>
__device__ __forceinline__ void StoreDigits(std::byte* input, TileType format, int first,
                                            int stride, int num_quads,
                                            const float4 (&values)[kCount]) {
  const int lane = first % 32;
  // Steps of all quads side by side: there are no branches around what lanes do together.
  uint32_t largest[kCount];
#pragma unroll
  for (int idx = 0; idx < kCount; ++idx) {
    const float4& v = values[idx];
    const float size = LargerSize(LargerSize(v.x, v.y), LargerSize(v.z, v.w));
    largest[idx] = __reduce_max_sync(0xffffffffu, __float_as_uint(size));
  }
  const DigitOrder order(format);
  const uint32_t digits = SharedAddress(input);
  const uint32_t scales = digits + DigitScalesPlace(4 * num_quads);
  const bool is_odd = lane % 2 != 0;
#pragma unroll
  for (int idx = 0; idx < kCount; ++idx) {
    const DigitScale scale(largest[idx], format);
    const float4& v = values[idx];
    const Digits own(v.x, v.y, v.z, v.w, scale.to_integer);
    // Two lanes have the 8 values of a quarter: one takes their high digits, one the low ones.
    const uint32_t kept = is_odd ? own.low : own.high;
    const uint32_t got = __shfl_xor_sync(0xffffffffu, is_odd ? own.high : own.low, 1);
    const uint32_t front = is_odd ? got : kept;
    const uint32_t back = is_odd ? kept : got;
    const int quad = first + idx * stride;
    if (quad - lane < num_quads) {
      const int chunk = quad / 8;
      StoreShared8(
          digits + chunk * kDigitChunkBytes + lane % 2 * kDigitPlaneBytes + lane % 8 / 2 * 8,
          PickBytes(front, back, order.first), PickBytes(front, back, order.second));
      if (lane % 8 == 0) StoreShared4(scales + chunk * 4, scale.scale);
    }
  }
}

}  // namespace lapidary::cuda
