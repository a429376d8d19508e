// The product of groups: a block multiplies some weight rows of an expert by a group's rows, with
// both passing through shared memory, several steps of k at a time. For few rows that is a matter
// of having enough loads under way and nothing that waits behind them; for many, of tiles large
// enough that the cache keeps up. Every dot product is summed in the order of k.
#include "base/check.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/moe/moe_groups.h"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kChunk = 32;         // values of k that a MmaChunk takes
constexpr int kStep = 2 * kChunk;  // in a stage
constexpr int kRowBytes = kStep * static_cast<int>(sizeof(bf16));

// What a block of kWarps warps multiplies: kWeightRows weight rows by kRows rows, with kStages
// steps in shared memory. A warp has all rows or 32 of them.
template <int kRowsOfTile, int kWeightRowsOfTile, int kWarps, int kStagesOfTile, int kBlocks>
struct Tile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kWeightRows = kWeightRowsOfTile;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kStages = kStagesOfTile;
  static constexpr int kBlocksPerSm = kBlocks;
  static constexpr int kRowWarps = kRows <= 32 ? 1 : kRows / 32;
  static constexpr int kWarpRows = kRows / kRowWarps;
  static constexpr int kWarpWeights = kWeightRows / (kWarps / kRowWarps);
  static constexpr int kRowTiles = kWarpRows / 8;         // of an mma, per warp
  static constexpr int kWeightTiles = kWarpWeights / 16;  // likewise
  static constexpr int kStageBytes = (kWeightRows + kRows) * kRowBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
};

// A row of a stage holds eight vectors of 16 bytes; odd rows have their halves swapped, so that the
// eight lanes of a phase (two rows, four vectors) touch different banks.
__device__ __forceinline__ int VectorOffset(int row, int vector) {
  return row * kRowBytes + (vector ^ ((row & 1) << 2)) * 16;
}

template <typename T, bool kGated>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    GroupProductKernel(const __grid_constant__ GroupProduct p) {
  // Stages of weight rows and rows behind them; at the end the results, [rows, features] of bf16.
  extern __shared__ __align__(128) unsigned char shared[];
  // The next kernel of a gated one is the other, which reads the groups early: it may start when
  // they are there.
  if constexpr (kGated) WaitForPreviousKernel();
  AllowNextKernel();
  const int num_groups = __ldcg(p.num_groups);
  const int4 words = __ldcg(reinterpret_cast<const int4*>(p.groups + blockIdx.x));
  if (blockIdx.x >= num_groups) {
    if constexpr (!kGated) WaitForPreviousKernel();
    return;
  }
  const RowGroup group{words.x, words.y, words.z, words.w};
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int g = lane / 4;
  const int t = lane % 4;
  constexpr int kFeatures = kGated ? T::kWeightRows / 2 : T::kWeightRows;
  const int first_feature = blockIdx.y * kFeatures;
  const bf16* weight = p.weight + int64_t{group.expert} * (kGated ? 2 : 1) * p.out_dim * p.in_dim;

  // This thread copies vector `vector` of every kCopyRows-th row, from copy_row on. -1: zeros.
  constexpr int kCopyRows = T::kThreads / 8;
  constexpr int kWeightCopies = T::kWeightRows / kCopyRows;
  constexpr int kCopies = kWeightCopies + T::kRows / kCopyRows;
  const int vector = threadIdx.x % 8;
  const int copy_row = threadIdx.x / 8;
  int sources[kCopies];
#pragma unroll
  for (int i = 0; i < kWeightCopies; ++i) {
    // Of sixteen weight rows of a gated product eight are gate rows and eight the up rows to them.
    const int row = copy_row + kCopyRows * i;
    const int feature = first_feature + (kGated ? row / 16 * 8 + row % 8 : row);
    const int weight_row = feature + (kGated && row % 16 >= 8 ? p.out_dim : 0);
    sources[i] = feature < p.out_dim ? weight_row * p.in_dim + 8 * vector : -1;
  }
  const int num_chunks = (p.in_dim + kChunk - 1) / kChunk;
  const int num_steps = (num_chunks + 1) / 2;
  const auto copy = [&](int step, int i, const bf16* base) {
    const bool valid = step * kStep + 8 * vector < p.in_dim && sources[i] >= 0;
    CopyAsync(shared + step % T::kStages * T::kStageBytes +
                  VectorOffset(copy_row + kCopyRows * i, vector),
              valid ? base + sources[i] + step * kStep : base, valid);
  };
  const auto copy_weights = [&](int step) {
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) copy(step, i, weight);
  };
  const auto copy_rows = [&](int step) {
#pragma unroll
    for (int i = kWeightCopies; i < kCopies; ++i) copy(step, i, p.in);
  };
  for (int step = 0; step < T::kStages - 1; ++step) {
    if (step < num_steps) copy_weights(step);
    CommitCopies();
  }
  if constexpr (!kGated) WaitForPreviousKernel();
#pragma unroll
  for (int i = kWeightCopies; i < kCopies; ++i) {
    const int idx = copy_row + kCopyRows * (i - kWeightCopies);
    sources[i] = -1;
    if (idx < group.count) {
      const int position = group.begin + idx;
      sources[i] = (kGated ? p.order[position] / p.top_k : position) * p.in_dim + 8 * vector;
    }
  }
  // The rows of the first steps without CopyAsync: they come last, and copies are waited for in
  // their order.
  uint4 first_rows[T::kStages - 1][kCopies - kWeightCopies];
#pragma unroll
  for (int step = 0; step < T::kStages - 1; ++step) {
#pragma unroll
    for (int i = kWeightCopies; i < kCopies; ++i) {
      uint4& value = first_rows[step][i - kWeightCopies];
      value = make_uint4(0, 0, 0, 0);
      if (step * kStep + 8 * vector < p.in_dim && sources[i] >= 0) {
        value = *reinterpret_cast<const uint4*>(p.in + sources[i] + step * kStep);
      }
    }
  }
#pragma unroll
  for (int step = 0; step < T::kStages - 1; ++step) {
#pragma unroll
    for (int i = kWeightCopies; i < kCopies; ++i) {
      *reinterpret_cast<uint4*>(shared + step * T::kStageBytes +
                                VectorOffset(copy_row + kCopyRows * i, vector)) =
          first_rows[step][i - kWeightCopies];
    }
  }

  float acc[T::kWeightTiles][T::kRowTiles][4] = {};
  const int weight_base = warp / T::kRowWarps * T::kWarpWeights + g;
  const int row_base = warp % T::kRowWarps * T::kWarpRows;
  const int row_tiles = min(T::kRowTiles, (group.count - row_base + 7) / 8);
  for (int step = 0; step < num_steps; ++step) {
    WaitForCopies<T::kStages - 2>();
    __syncthreads();
    if (step + T::kStages - 1 < num_steps) {
      copy_weights(step + T::kStages - 1);
      copy_rows(step + T::kStages - 1);
    }
    CommitCopies();
    if (row_tiles <= 0) continue;
    const unsigned char* stage = shared + step % T::kStages * T::kStageBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (2 * step + half >= num_chunks) break;
      uint4 b[T::kRowTiles];
#pragma unroll
      for (int n = 0; n < T::kRowTiles; ++n) {
        b[n] = *reinterpret_cast<const uint4*>(
            stage + VectorOffset(T::kWeightRows + row_base + 8 * n + g, 4 * half + t));
      }
#pragma unroll
      for (int m = 0; m < T::kWeightTiles; ++m) {
        const int row = weight_base + 16 * m;
        const uint4 low = *reinterpret_cast<const uint4*>(stage + VectorOffset(row, 4 * half + t));
        const uint4 high =
            *reinterpret_cast<const uint4*>(stage + VectorOffset(row + 8, 4 * half + t));
#pragma unroll
        for (int n = 0; n < T::kRowTiles; ++n) {
          if (n < row_tiles) MmaChunk(acc[m][n], low, high, b[n]);
        }
      }
    }
  }

  // Through shared memory, so that rows are stored in whole vectors. A row is 16 bytes longer than
  // its features: neighbours start in different banks.
  WaitForCopies<0>();
  __syncthreads();
  constexpr int kOutStride = kFeatures + 8;
  bf16* out_tile = reinterpret_cast<bf16*>(shared);
#pragma unroll
  for (int m = 0; m < T::kWeightTiles; ++m) {
    const int tile = warp / T::kRowWarps * T::kWeightTiles + m;
#pragma unroll
    for (int n = 0; n < T::kRowTiles; ++n) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        bf16* out = out_tile + (row_base + 8 * n + 2 * t + column) * kOutStride;
        const float low = acc[m][n][column];
        const float high = acc[m][n][2 + column];
        if constexpr (kGated) {
          out[8 * tile + g] = __float2bfloat16(GeluTanh(low) * high);
        } else {
          out[16 * tile + g] = __float2bfloat16(low);
          out[16 * tile + g + 8] = __float2bfloat16(high);
        }
      }
    }
  }
  __syncthreads();
  constexpr int kVectors = kFeatures / 8;
  for (int idx = threadIdx.x; idx < group.count * kVectors; idx += T::kThreads) {
    const int member = idx / kVectors;
    const int feature = idx % kVectors * 8;
    if (first_feature + feature >= p.out_dim) continue;
    const int position = group.begin + member;
    const int64_t to = kGated ? position : p.order[position];
    *reinterpret_cast<uint4*>(p.out + to * p.out_dim + first_feature + feature) =
        *reinterpret_cast<const uint4*>(out_tile + member * kOutStride + feature);
  }
}

template <typename T>
void RunTile(const LaunchContext& context, const GroupProduct& product, bool gated) {
  CHECK_LE(product.rows_per_group, T::kRows);
  const int features = gated ? T::kWeightRows / 2 : T::kWeightRows;
  const dim3 grid(static_cast<unsigned>(product.max_groups),
                  (product.out_dim + features - 1) / features);
  Launch(context, gated ? GroupProductKernel<T, true> : GroupProductKernel<T, false>, grid,
         dim3(T::kThreads), T::kSharedBytes, product);
}

}  // namespace

void RunGroupProduct(const LaunchContext& context, const GroupProduct& product, bool gated) {
  if (product.rows_per_group <= kNarrowGroupRows) {
    RunTile<Tile<kNarrowGroupRows, 64, 4, 6, 3>>(context, product, gated);
  } else if (product.rows_per_group <= kMiddleGroupRows) {
    RunTile<Tile<kMiddleGroupRows, 128, 4, 4, 2>>(context, product, gated);
  } else {
    RunTile<Tile<kWideGroupRows, 128, 8, 3, 2>>(context, product, gated);
  }
}

}  // namespace lapidary::cuda
