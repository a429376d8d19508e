// One head of a query, key or value over a warp: norm, rotary embedding, cached form.
#pragma once

#include "model/kv_entry.h"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {

// Of each 256 dims lane l holds eight, from 8 l on. The partner of a dim in the rotary pair, half a
// head away, is in the same lane of 512 dims, sixteen lanes away of 256.
template <int kHeadDim>
struct HeadRow {
  static_assert(kHeadDim == 256 || kHeadDim == 512);
  static constexpr int kPerLane = kHeadDim / kWarpSize;
  float values[kPerLane];

  // As they come from memory.
  using Packed = Bf16x8[kPerLane / 8];
  __device__ static void Load(const bf16* from, Packed& packed) {
    ForEachEight(
        [&](int at, int dim) { packed[at / 8] = *reinterpret_cast<const Bf16x8*>(from + dim); });
  }
  __device__ void Unpack(const Packed& packed) {
#pragma unroll
    for (int at = 0; at < kPerLane; at += 8) {
      float part[8];
      cuda::Unpack(packed[at / 8], part);
#pragma unroll
      for (int idx = 0; idx < 8; ++idx) values[at + idx] = part[idx];
    }
  }

  __device__ void Store(bf16* to) const {
    ForEachEight([&](int at, int dim) { StoreEight(at, to + dim); });
  }

  __device__ static int Dim(int at) {
    return at / 8 * 256 + static_cast<int>(threadIdx.x % kWarpSize) * 8 + at % 8;
  }

  // x * rsqrt(mean(x^2) + eps)
  __device__ void Norm(float eps) {
    float squares = 0.0f;
#pragma unroll
    for (const float value : values) squares += value * value;
    const float inverse = rsqrtf(WarpSum(squares) / kHeadDim + eps);
#pragma unroll
    for (float& value : values) value *= inverse;
  }

  // Factors of the lane's dims; arrays are 16-byte aligned, here and below.
  __device__ static void LoadPerDim(const float* from, float (&factors)[kPerLane]) {
#pragma unroll
    for (int at = 0; at < kPerLane; at += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + Dim(at));
      factors[at] = four.x, factors[at + 1] = four.y;
      factors[at + 2] = four.z, factors[at + 3] = four.w;
    }
  }
  __device__ void Multiply(const float (&factors)[kPerLane]) {
#pragma unroll
    for (int at = 0; at < kPerLane; ++at) values[at] *= factors[at];
  }
  __device__ void MultiplyPerDim(const float* factors) {
#pragma unroll
    for (int at = 0; at < kPerLane; at += 4) MultiplyFour(at, factors);
  }

  // Cosines and sines of the lane's eight pairs, in twos; pairs behind the last stay as they are.
  using Angles = float4[4];
  __device__ static void LoadAngles(const float2* cos_sin, int rotary_pairs, Angles& angles) {
#pragma unroll
    for (int two = 0; two < 4; ++two) angles[two] = AnglesOfTwo(cos_sin, rotary_pairs, two);
  }

  // The rotary embedding of the first pairs.
  __device__ void Rotate(const Angles& angles) {
#pragma unroll
    for (int two = 0; two < 4; ++two) RotateTwo(angles[two], two);
  }
  __device__ void Rotate(const float2* cos_sin, int rotary_pairs) {
#pragma unroll
    for (int two = 0; two < 4; ++two) RotateTwo(AnglesOfTwo(cos_sin, rotary_pairs, two), two);
  }

  // Entries where K is V, of a multiple of 8 rotary pairs (kv_entry.h): the value, the rotary dims
  // of the rotated key, and the rotated query, of which the other dims carry the key norm of the
  // KV's owner.
  __device__ void StoreSharedValue(bf16* entry, int rotary_pairs) const {
    ForEachEight(
        [&](int at, int dim) { StoreEight(at, entry + ColumnOfDim(kHeadDim, rotary_pairs, dim)); });
  }
  __device__ void StoreSharedKey(bf16* entry, int rotary_pairs) const {
    ForEachEight([&](int at, int dim) {
      const int column = ColumnOfDim(kHeadDim, rotary_pairs, dim);
      if (column < 2 * rotary_pairs) StoreEight(at, entry + kHeadDim + column);
    });
  }
  __device__ void StoreSharedQuery(bf16* query, const float* owner_k_norm, int rotary_pairs) {
    ForEachEight([&](int at, int dim) {
      const int column = ColumnOfDim(kHeadDim, rotary_pairs, dim);
      const bool is_rotary = column < 2 * rotary_pairs;
      if (!is_rotary) MultiplyFour(at, owner_k_norm), MultiplyFour(at + 4, owner_k_norm);
      StoreEight(at, query + (is_rotary ? kHeadDim + column : column) - 2 * rotary_pairs);
    });
  }

 private:
  template <typename Use>
  __device__ static void ForEachEight(const Use& use) {
#pragma unroll
    for (int at = 0; at < kPerLane; at += 8) use(at, Dim(at));
  }

  __device__ void StoreEight(int at, bf16* to) const {
    float part[8];
#pragma unroll
    for (int idx = 0; idx < 8; ++idx) part[idx] = values[at + idx];
    Store8(to, part);
  }

  __device__ void MultiplyFour(int at, const float* factors) {
    const float4 four = *reinterpret_cast<const float4*>(factors + Dim(at));
    values[at] *= four.x;
    values[at + 1] *= four.y;
    values[at + 2] *= four.z;
    values[at + 3] *= four.w;
  }

  __device__ static float4 AnglesOfTwo(const float2* cos_sin, int rotary_pairs, int two) {
    const int pair = Dim(0) % (kHeadDim / 2) + 2 * two;
    float4 angles = {1.0f, 0.0f, 1.0f, 0.0f};
    if (pair + 1 < rotary_pairs) {
      angles = *reinterpret_cast<const float4*>(cos_sin + pair);
    } else if (pair < rotary_pairs) {
      const float2 angle = cos_sin[pair];
      angles.x = angle.x, angles.y = angle.y;
    }
    return angles;
  }

  __device__ void RotateTwo(const float4& angles, int two) {
    RotateOne(2 * two, angles.x, angles.y);
    RotateOne(2 * two + 1, angles.z, angles.w);
  }
  __device__ void RotateOne(int at, float cosine, float sine) {
    if constexpr (kHeadDim == 512) {
      const float low = values[at];
      const float high = values[at + 8];
      values[at] = low * cosine - high * sine;
      values[at + 8] = high * cosine + low * sine;
    } else {
      const bool is_low = threadIdx.x % kWarpSize < kWarpSize / 2;
      const float partner = __shfl_xor_sync(0xffffffffu, values[at], kWarpSize / 2);
      values[at] = values[at] * cosine + partner * (is_low ? -sine : sine);
    }
  }
};

}  // namespace lapidary::cuda
