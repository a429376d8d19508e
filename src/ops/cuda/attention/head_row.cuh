// One head of a query, key or value over a warp: norm, rotary embedding, cached form.
#pragma once

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
#pragma unroll
    for (int at = 0; at < kPerLane; at += 8) {
      float part[8];
#pragma unroll
      for (int idx = 0; idx < 8; ++idx) part[idx] = values[at + idx];
      Store8(to + Dim(at), part);
    }
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
    for (int at = 0; at < kPerLane; at += 4) {
      const float4 four = *reinterpret_cast<const float4*>(factors + Dim(at));
      values[at] *= four.x;
      values[at + 1] *= four.y;
      values[at + 2] *= four.z;
      values[at + 3] *= four.w;
    }
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

  // The rotary dims, low half then high half, to 2 * rotary_pairs values.
  __device__ void StoreRotaryDims(bf16* to, int rotary_pairs) const {
#pragma unroll
    for (int at = 0; at < kPerLane; ++at) {
      const int pair = Dim(at) % (kHeadDim / 2);
      const int half = Dim(at) / (kHeadDim / 2);
      if (pair < rotary_pairs) to[half * rotary_pairs + pair] = __float2bfloat16(values[at]);
    }
  }

  __device__ void ZeroRotaryDims(int rotary_pairs) {
#pragma unroll
    for (int at = 0; at < kPerLane; ++at) {
      if (Dim(at) % (kHeadDim / 2) < rotary_pairs) values[at] = 0.0f;
    }
  }

  // The rotated query in the form that entries where K is V are multiplied with (KvEntryPlan):
  // the other dims carry the key norm of the KV's owner.
  __device__ void StoreQueryForKeyIsValue(bf16* to, const float* owner_k_norm, int rotary_pairs) {
    StoreRotaryDims(to + kHeadDim, rotary_pairs);
    ZeroRotaryDims(rotary_pairs);
    MultiplyPerDim(owner_k_norm);
    Store(to);
  }

 private:
  // `sine` has the sign of this half.
  __device__ static void RotateOne(float& value, float cosine, float sine) {
    const float partner = __shfl_xor_sync(0xffffffffu, value, kWarpSize / 2);
    value = value * cosine + partner * sine;
  }
};

}  // namespace lapidary::cuda
