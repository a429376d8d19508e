// Quantised weights (tensor/weight_tiles.h) in shared memory as wgmma's first operand, in bf16 and
// in the order of columns: 16 rows and 64 columns at a time, for one warp.
//
// In a stripe, lane 4 g + t's word holds 8 neighbouring columns of row g, for kernels that choose
// the order of k. wgmma reads x as it lies in memory, so here lane 4 g + t needs columns 2 t and
// 2 t + 1 of every 8: each of the four lanes of a row reads all codes of the row and takes its
// pair of every word.
#pragma once

#include <cstdint>

#include "ops/cuda/linear/weight_tile.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/tile_type.h"

namespace lapidary::cuda {

// The first operands of four steps of 16 columns.
using WeightFragments = uint32_t[4][4];

template <int kBits>
struct FragmentLoader;

// pairs[j]: the lane's pair of the 8 columns from 8 j on, of a row's 64, not yet scaled.
template <>
struct FragmentLoader<4> {
  static constexpr int kCodeBytes = 8 * 32;  // of a unit
  // `row`: the codes of the lane's row in a unit.
  static __device__ __forceinline__ void LoadPairs(uint32_t row, int t, uint32_t (&pairs)[8]) {
    const uint4 low = LoadShared(row);
    const uint4 high = LoadShared(row + 16);
    // Words lie as [quarter of 8 columns][chunk of 32].
    const uint32_t words[8] = {low.x, low.z, high.x, high.z, low.y, low.w, high.y, high.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) pairs[j] = ValuesOf4BitPair(words[j] >> (4 * t));
  }
};
template <>
struct FragmentLoader<8> {
  static constexpr int kCodeBytes = 8 * 64;
  static __device__ __forceinline__ void LoadPairs(uint32_t row, int t, uint32_t (&pairs)[8]) {
    // Bytes t % 2 and t % 2 + 2 of word t / 2, as bytes 0 and 2.
    const uint32_t first = t % 2 + 4 * (t / 2);
    const uint32_t selector = first + ((first + 2) << 8);
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      const uint4 words = LoadShared(row + 16 * quarter);
      pairs[quarter] = ValuesOf8BitPair(__byte_perm(words.x, words.y, selector));
      pairs[4 + quarter] = ValuesOf8BitPair(__byte_perm(words.z, words.w, selector));
    }
  }
};

// `low`, `high`: units of the stripes of rows 0 .. 7 and 8 .. 15, in shared memory. `is_zero`: all
// fragments become 0.
template <TileType kType>
__device__ __forceinline__ void LoadFragments(uint32_t low, uint32_t high, int lane, bool is_zero,
                                              WeightFragments& fragments) {
  using Loader = FragmentLoader<Is4Bit(kType) ? 4 : 8>;
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t unit = half == 0 ? low : high;
    const uint32_t stored = LoadShared4(unit + Loader::kCodeBytes + 4 * g);
    const uint32_t scales = is_zero ? 0 : stored;
    uint32_t pairs[8];
    Loader::LoadPairs(unit + g * (Loader::kCodeBytes / 8), t, pairs);
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      const PairScale<HasF16Scales(kType)> scale(scales, chunk);
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        // Step 2 chunk + quarter / 2; the second 8 columns of a step are the later registers.
        fragments[2 * chunk + quarter / 2][quarter % 2 * 2 + half] =
            ScaledPair(pairs[4 * chunk + quarter], scale);
      }
    }
  }
}

}  // namespace lapidary::cuda
