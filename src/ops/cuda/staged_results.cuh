// The results of a warpgroup's products (wgmma.cuh) on their way out through shared memory: 64 rows
// of the weight by some rows of x, turned into rows of x by features, bf16.
//
// Of a gated weight's sixteen rows eight are gate rows and eight the up rows to them, so that both
// meet in one thread; it then has 32 features.
#pragma once

#include "ops/cuda/activation.cuh"
#include "ops/cuda/ptx/warp_mma.cuh"
#include "ops/cuda/ptx/wgmma.cuh"
#include "ops/cuda/row_norm.cuh"

namespace lapidary::cuda {

inline constexpr int kStagedRows = 64;  // of x, at a time
inline constexpr int kStagedBytes = kStagedRows * kWarpgroupRows * 2;

// Lies in shared memory as [row][feature], in vectors of eight; in neighbouring rows the same
// vector lies in other banks.
template <bool kGated>
struct StagedResults {
  static constexpr int kFeatures = kGated ? kWarpgroupRows / 2 : kWarpgroupRows;
  static constexpr int kVectors = kFeatures / 8;

  __device__ __forceinline__ static uint32_t VectorOffset(int row, int vector) {
    const int swizzled = vector ^ (kVectors == 8 ? row % 8 : row / 2 % 4);
    return (row * kVectors + swizzled) * 16;
  }

  // Rows of x from `first` on, as many as are staged or there are; by all warps of a warpgroup.
  template <int kColumns>
  __device__ __forceinline__ static void Stage(uint32_t staging, int warp, int lane,
                                               const float (&acc)[kColumns / 2], int first) {
    const int row = lane % 8;
    const int matrix = lane / 8;
#pragma unroll
    for (int j = 0; j < kStagedRows / 8; j += 2) {
      if (first + 8 * j >= kColumns) break;
      const float* const sums = acc + first / 2 + 4 * j;  // of two tiles of 8 columns
      if constexpr (kGated) {
        uint32_t matrices[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          matrices[i] = PackBf16x2(GeluTanh(sums[4 * i]) * sums[4 * i + 2],
                                   GeluTanh(sums[4 * i + 1]) * sums[4 * i + 3]);
        }
        StoreMatricesTransposed(staging + VectorOffset(8 * (j + matrix % 2) + row, warp), matrices);
      } else {
        uint32_t matrices[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) matrices[i] = PackBf16x2(sums[2 * i], sums[2 * i + 1]);
        StoreMatricesTransposed(
            staging + VectorOffset(8 * (j + matrix / 2) + row, 2 * warp + matrix % 2), matrices);
      }
    }
  }
};

}  // namespace lapidary::cuda
