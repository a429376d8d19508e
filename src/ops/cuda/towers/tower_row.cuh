// A row of a tower in the registers of a warp.
#pragma once

#include <type_traits>

#include "ops/cuda/row_norm.cuh"
#include "ops/cuda/towers/tower_rows.h"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {

__device__ __forceinline__ float Clamp(float value, const Bounds& bounds) {
  return fminf(fmaxf(value, bounds.low), bounds.high);
}
__device__ __forceinline__ float4 Clamp(float4 v, const Bounds& bounds) {
  return {Clamp(v.x, bounds), Clamp(v.y, bounds), Clamp(v.z, bounds), Clamp(v.w, bounds)};
}

__device__ __forceinline__ float4 MulAdd(float4 v, float scale, float4 added) {
  return {v.x * scale + added.x, v.y * scale + added.y, v.z * scale + added.z,
          v.w * scale + added.w};
}

// use(which of the lane's, quad in the row) for a lane's quads of a row: l, l + 32, ...
template <int kQuads, typename Use>
__device__ __forceinline__ void ForEachOfLane(int num_quads, const Use& use) {
#pragma unroll
  for (int idx = 0; idx < kQuads; ++idx) {
    const int quad = static_cast<int>(threadIdx.x % kWarpSize) + idx * kWarpSize;
    if (quad < num_quads) use(idx, quad);
  }
}

// kQuads of four values to a lane, zeros behind the row's end.
template <int kQuads>
struct WarpRow {
  float4 quads[kQuads];

  // use(quad in the row, its values)
  template <typename Use>
  __device__ __forceinline__ void ForEach(int num_quads, const Use& use) {
    ForEachOfLane<kQuads>(num_quads, [&](int idx, int quad) { use(quad, quads[idx]); });
  }
  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (float4& quad : quads) quad = {0.0f, 0.0f, 0.0f, 0.0f};
  }
  __device__ __forceinline__ void Load(const float* row, int num_quads) {
    Clear();
    ForEach(num_quads,
            [&](int quad, float4& v) { v = reinterpret_cast<const float4*>(row)[quad]; });
  }
  __device__ __forceinline__ void Load(const bf16* row, int num_quads) {
    Clear();
    ForEach(num_quads, [&](int quad, float4& v) {
      v = UnpackBf16x4(reinterpret_cast<const uint2*>(row)[quad]);
    });
  }
  __device__ __forceinline__ float InverseRmsOf(int dim, float eps) const {
    float sum = 0.0f;
#pragma unroll
    for (const float4& quad : quads) sum = AddSquares(sum, quad);
    return InverseRms(WarpSum(sum), dim, eps);
  }
  // Times its inverse RMS and, unless null, `weight`.
  __device__ __forceinline__ void Norm(const float* weight, int dim, float eps) {
    const float inverse = InverseRmsOf(dim, eps);
    ForEach(dim / 4, [&](int quad, float4& v) {
      const float4 ones = {1.0f, 1.0f, 1.0f, 1.0f};
      v = Normed(v, inverse,
                 weight == nullptr ? ones : reinterpret_cast<const float4*>(weight)[quad]);
    });
  }
  __device__ __forceinline__ void Store(bf16* row, int num_quads, const Bounds& bounds) {
    ForEach(num_quads, [&](int quad, const float4& v) {
      reinterpret_cast<uint2*>(row)[quad] = PackBf16x4(Clamp(v, bounds));
    });
  }
};

// Calls kernel<quads of a lane> for rows of `dim`.
template <typename Use>
void WithQuads(int dim, const Use& use) {
  const int quads = (dim / 4 + kWarpSize - 1) / kWarpSize;
  if (quads <= 6) {
    use(std::integral_constant<int, 6>{});
  } else if (quads <= 9) {
    use(std::integral_constant<int, 9>{});
  } else {
    use(std::integral_constant<int, kMaxTowerDim / 4 / kWarpSize>{});
  }
}

}  // namespace lapidary::cuda
