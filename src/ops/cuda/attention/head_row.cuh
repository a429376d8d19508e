// One head of a query, key or value over a warp: norm, rotary embedding, cached form.
#pragma once

#include "model/kv_entry.h"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {

// Lane l holds dims [l * kPerLane, (l + 1) * kPerLane). The partner of a dim in the rotary pair,
// half a head away, is sixteen lanes away.
template <int kHeadDim>
struct HeadRow {
  static constexpr int kPerLane = kHeadDim / kWarpSize;
  float values[kPerLane];

  __device__ void Load(const bf16* from) {
#pragma unroll
    for (int at = 0; at < kPerLane; at += 8) {
      float part[8];
      Load8(from + Dim(at), part);
#pragma unroll
      for (int idx = 0; idx < 8; ++idx) values[at + idx] = part[idx];
    }
  }

  __device__ void Store(bf16* to) const {
    ForEachEight([&](int at, int dim) { StoreEight(at, to + dim); });
  }

  __device__ static int Dim(int at) {
    return static_cast<int>(threadIdx.x % kWarpSize) * kPerLane + at;
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

  // Both arrays are 16-byte aligned, as are those below.
  __device__ void NormAndRotate(const float* norm_weight, const float2* cos_sin, int rotary_pairs,
                                float eps) {
    Norm(eps);
    MultiplyPerDim(norm_weight);
    Rotate(cos_sin, rotary_pairs);
  }

  __device__ void MultiplyPerDim(const float* factors) {
#pragma unroll
    for (int at = 0; at < kPerLane; at += 4) MultiplyFour(at, factors);
  }

  // The rotary embedding of the first pairs.
  __device__ void Rotate(const float2* cos_sin, int rotary_pairs) {
    const bool is_low = threadIdx.x % kWarpSize < kWarpSize / 2;
    const int first_pair = Dim(0) % (kHeadDim / 2);
#pragma unroll
    for (int at = 0; at < kPerLane; at += 2) {
      float4 angles = {1.0f, 0.0f, 1.0f, 0.0f};
      if (first_pair + at + 1 < rotary_pairs) {
        angles = *reinterpret_cast<const float4*>(cos_sin + first_pair + at);
      } else if (first_pair + at < rotary_pairs) {
        const float2 angle = cos_sin[first_pair + at];
        angles.x = angle.x, angles.y = angle.y;
      }
      RotateOne(values[at], angles.x, is_low ? -angles.y : angles.y);
      RotateOne(values[at + 1], angles.z, is_low ? -angles.w : angles.w);
    }
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

  // `sine` has the sign of this half.
  __device__ static void RotateOne(float& value, float cosine, float sine) {
    const float partner = __shfl_xor_sync(0xffffffffu, value, kWarpSize / 2);
    value = value * cosine + partner * sine;
  }
};

}  // namespace lapidary::cuda
