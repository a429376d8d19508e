// The end of linear_wide.h's kernel: from a tile's sums in shared memory to y.
#pragma once

#include "ops/cuda/linear/linear_store.cuh"
#include "ops/cuda/linear/linear_wide_tiles.h"
#include "ops/cuda/row_norm.cuh"

namespace lapidary::cuda {

struct WideParams {
  LinearOutput output;
  int rows;
  int num_tiles;
  int second_half;   // the weight row behind row tile_rows / 2 of tile 0
  int tile_step;     // weight rows from one tile to the next, of either half
  int num_k_blocks;  // of 64 values
  int split;
  int row_parts;
  int stages;
  int staging;      // byte offset of the staged sums behind the ring's start
  bool vectorised;  // rows of y and of the multiplier are aligned for groups of eight
};

// Eight features of a row, `sums` already gated; y's rows are aligned for it.
__device__ __forceinline__ void StoreEight(const LinearOutput& output, int row, int feature,
                                           float (&sums)[8]) {
  if (feature >= output.width) return;
  const int64_t index = static_cast<int64_t>(row) * output.width + feature;
  if (output.epilogue == Epilogue::kSoftcap) {
    float4* y = reinterpret_cast<float4*>(static_cast<float*>(output.y) + index);
#pragma unroll
    for (float& sum : sums) sum = Softcap(sum, output.softcap);
    y[0] = {sums[0], sums[1], sums[2], sums[3]};
    y[1] = {sums[4], sums[5], sums[6], sums[7]};
    return;
  }
  if (output.epilogue == Epilogue::kGeluMul) {
    const uint4 words = __ldcg(reinterpret_cast<const uint4*>(
        output.multiplier + row * output.multiplier_stride + feature));
    const float4 low = UnpackBf16x4({words.x, words.y});
    const float4 high = UnpackBf16x4({words.z, words.w});
    const float factors[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = GeluTanh(sums[i]) * factors[i];
  }
  *reinterpret_cast<uint4*>(static_cast<bf16*>(output.y) + index) = {
      PackBf16x2(sums[0], sums[1]), PackBf16x2(sums[2], sums[3]), PackBf16x2(sums[4], sums[5]),
      PackBf16x2(sums[6], sums[7])};
}

// Adds eight sums of `split` blocks that lie `stride` floats apart, in rising order of k.
__device__ __forceinline__ void SumEight(const float* staged, int split, int stride,
                                         float (&sums)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i] = 0.0f;
  for (int rank = 0; rank < split; ++rank) {
    const float4* part = reinterpret_cast<const float4*>(staged + rank * stride);
    const float4 low = part[0];
    const float4 high = part[1];
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] += values[i];
  }
}

// num_rows rows of a tile, from `first_row` on, from their staged sums. The sums of the blocks of a
// split lie part_stride floats apart.
template <int kTileRows, bool kGated>
__device__ __forceinline__ void FinishRows(const WideParams& p, const float* staged,
                                           int part_stride, int first_row, int num_rows, int tile) {
  constexpr int kConsumers = 32 * WideConsumerWarps(kTileRows);
  constexpr int kStride = kTileRows + kWidePadding;
  constexpr int kHalf = kTileRows / 2;
  constexpr int kWidth = kGated ? kHalf : kTileRows;
  if (!p.vectorised) {
#pragma unroll 1
    for (int item = threadIdx.x; item < num_rows * kWidth; item += kConsumers) {
      const float* source = staged + item / kWidth * kStride + item % kWidth;
      float sum = 0.0f, up = 0.0f;
      for (int rank = 0; rank < p.split; ++rank, source += part_stride) {
        sum += source[0];
        if (kGated) up += source[kHalf];
      }
      if (kGated) sum = GeluTanh(sum) * up;
      StoreFeature(p.output, first_row + item / kWidth, tile * kWidth + item % kWidth, sum);
    }
    return;
  }
  constexpr int kGroups = kWidth / 8;
#pragma unroll 2
  for (int item = threadIdx.x; item < num_rows * kGroups; item += kConsumers) {
    const int row = item / kGroups;
    const int feature = item % kGroups * 8;
    float sums[8];
    SumEight(staged + row * kStride + feature, p.split, part_stride, sums);
    if constexpr (kGated) {
      float up[8];
      SumEight(staged + row * kStride + kHalf + feature, p.split, part_stride, up);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] = GeluTanh(sums[i]) * up[i];
    }
    StoreEight(p.output, first_row + row, tile * kWidth + feature, sums);
  }
}

}  // namespace lapidary::cuda
