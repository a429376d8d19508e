// The kernel of linear_skinny.h, for any format of weights (weight_tile.cuh).
#pragma once

#include <iterator>

#include "base/check.h"
#include "ops/cuda/linear/linear_skinny.h"
#include "ops/cuda/linear/linear_skinny_input.cuh"
#include "ops/cuda/linear/linear_store.cuh"
#include "ops/cuda/linear/weight_tile.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/ptx/tma.cuh"

namespace lapidary::cuda {

// A warp's segment of k, in the weight tile's steps, and the lane's place in it: lane 4 g + t
// (mma.cuh).
struct WarpSegment {
  int k;  // its first value
  int num_steps;
  int padded_steps;  // of the longest segment, a multiple of the depth
  int lane_steps;    // in which the lane has weights
  int g;
  int t;
};

template <typename Tile, int kDepth>
__device__ __forceinline__ WarpSegment SegmentOfWarp(const SkinnyParams& p, int segment, int lane) {
  constexpr int kUnitSteps = 64 / Tile::kStep;
  const int num_steps = kUnitSteps * (p.segments.Begin(segment + 1) - p.segments.Begin(segment));
  const int max_steps =
      kUnitSteps * ((p.segments.num_units + p.segments.num_segments - 1) / p.segments.num_segments);
  const int padded_steps = (max_steps + kDepth - 1) / kDepth * kDepth;
  const int k = 64 * p.segments.Begin(segment);
  return {.k = k,
          .num_steps = num_steps,
          .padded_steps = padded_steps,
          .lane_steps = min(num_steps, Tile::NumSteps(p.weight, k, lane)),
          .g = lane / 4,
          .t = lane % 4};
}

// Where the loads of weights that run ahead stand: steps step .. step + kDepth - 1 of `tile` are
// next.
template <typename Tile>
struct WeightStream {
  int tile;
  int step;
  int lane_steps;  // from `step` on: none of tiles past the last
  Tile weights;

  __device__ __forceinline__ void SeekTile(const SkinnyParams& p, const WarpSegment& segment) {
    weights.Seek(p.weight, tile, segment.k, 4 * segment.g + segment.t);
    lane_steps = segment.lane_steps;
  }
  __device__ __forceinline__ void Load(int ahead, typename Tile::Stage& stage) const {
    weights.Load(step, ahead, ahead < lane_steps, stage);
  }
  template <int kDepth>
  __device__ __forceinline__ void Advance(const SkinnyParams& p, const WarpSegment& segment,
                                          int num_clusters) {
    step += kDepth;
    if (step < segment.padded_steps) {
      weights.Advance(kDepth);
      lane_steps -= kDepth;
      return;
    }
    step = 0;
    tile += num_clusters;
    lane_steps = 0;
    if (tile < p.num_tiles) SeekTile(p, segment);
  }
};

// acc = the warp's segment of a tile's products, 16 features by 8 rows; the weights of the tile are
// in `stages`, step j in j % kDepth, and those of later steps are loaded in their place. `x_lane`:
// of the lane's row of x; any row will do for lanes of columns that nobody looks at.
template <typename Tile, int kDepth>
__device__ __forceinline__ void MultiplyTile(const SkinnyParams& p, const WarpSegment& segment,
                                             const bf16* x_lane, int rows, int num_clusters,
                                             WeightStream<Tile>& stream,
                                             typename Tile::Stage (&stages)[kDepth],
                                             float (&acc)[4]) {
  constexpr int kChunks = Tile::kStep / 32;
  struct Input {
    uint4 chunks[kChunks];
  };
  // Past the segment's end it reads what lies there: the layout has room for that.
  const auto load_x = [&](int step) {
    Input x = {};
    if (Tile::kZeroesInput && (segment.g >= rows || step >= segment.num_steps)) return x;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      x.chunks[chunk] = *reinterpret_cast<const uint4*>(x_lane + Tile::kStep * step + 32 * chunk);
    }
    return x;
  };
  Input x = load_x(0);
  for (int first_step = 0; first_step < segment.padded_steps; first_step += kDepth) {
#pragma unroll
    for (int j = 0; j < kDepth; ++j) {
      if (first_step + j < segment.num_steps) {
        // One ahead: shared memory answers while the tensor core works.
        const Input x_now = x;
        x = load_x(first_step + j + 1);
        Tile::Multiply(acc, stages[j], x_now.chunks);
      }
      __syncwarp();  // or the compiler gathers all loads behind the last mma
      stream.Load(j, stages[j]);
    }
    stream.template Advance<kDepth>(p, segment, num_clusters);
  }
}

// The warps' sums of a tile meet in `buffer`, f32 [warps][kSkinnyPairs][2][columns].
constexpr int kWarpPartials = kSkinnyFeatures * kSkinnyColumns;
__device__ __forceinline__ void StorePartials(const float (&acc)[4], const WarpSegment& segment,
                                              int warp, float* buffer) {
  float* target = buffer + warp * kWarpPartials + 2 * segment.g * kSkinnyColumns + 2 * segment.t;
  *reinterpret_cast<float2*>(target) = {acc[0], acc[1]};
  *reinterpret_cast<float2*>(target + kSkinnyColumns) = {acc[2], acc[3]};
}
// Both features of a pair.
__device__ __forceinline__ float2 SumPartials(const float* buffer, int pair, int row) {
  const float* sums = buffer + 2 * pair * kSkinnyColumns + row;
  float2 total = {sums[0], sums[kSkinnyColumns]};
#pragma unroll
  for (int w = 1; w < kSkinnyWarps; ++w) {
    total.x += sums[w * kWarpPartials];
    total.y += sums[w * kWarpPartials + kSkinnyColumns];
  }
  return total;
}

// In a cluster a block finishes kSkinnyPairs / cluster pairs of each tile. The other blocks send
// their sums of tile n while it computes tile n + 1. They may overwrite what they sent for tile n -
// 2: a block sends tile n after it has finished n - 1, so who has received all of tile n - 1 knows
// that everyone is done with tile n - 2.
struct ClusterExchange {
  const float2* sums;  // [2][cluster][own_pairs][rows]
  uint32_t barriers;   // [2]
  int rank;
  int own_pairs;
  int own_pair;  // of the thread, if there is such a row
  int own_row;

  // Tile number `sequence` of this cluster.
  __device__ __forceinline__ uint32_t Barrier(int sequence) const {
    return barriers + 8 * (sequence & 1);
  }
  __device__ __forceinline__ void Expect(int sequence, int rows) const {
    ExpectBytes(Barrier(sequence), kSkinnyPairs * rows * sizeof(float2));
  }
  __device__ __forceinline__ void Send(int sequence, int pair, int row, int rows,
                                       float2 total) const {
    const int offset =
        ((sequence & 1) * kSkinnyPairs + rank * own_pairs + pair % own_pairs) * rows + row;
    const uint32_t target = pair / own_pairs;
    SendToBlock(AddressInBlock(SharedAddress(sums + offset), target),
                AddressInBlock(Barrier(sequence), target), total);
  }
  __device__ __forceinline__ void Finish(const SkinnyParams& p, int tile, int sequence,
                                         int rows) const {
    if (own_row >= rows) return;
    WaitForBytes(Barrier(sequence), (sequence >> 1) & 1);
    const float2* received = sums + ((sequence & 1) * kSkinnyPairs + own_pair) * rows + own_row;
    float2 total = received[0];
#pragma unroll 1
    for (int r = 1; r < p.cluster; ++r) {
      const float2 other = received[r * own_pairs * rows];
      total.x += other.x;
      total.y += other.y;
    }
    StorePair(p.output, own_row, tile, rank * own_pairs + own_pair, total.x, total.y);
  }
};

// kDepth: steps of weights in flight per warp.
//
// Each cluster takes every num_clusters-th tile. A warp walks its segment of one tile after the
// other; loads run kDepth chunks ahead, across tiles, so barriers do not drain them.
template <TileType kType, int kDepth>
__global__ void __launch_bounds__(kSkinnyThreads, SkinnyBlocksPerSm(kType, kDepth))
    SkinnyKernel(const __grid_constant__ SkinnyParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float norm_scratch[2][kNormWarps];
  __shared__ uint64_t byte_barriers[2];
  AllowNextKernel();
  const uint32_t barriers = SharedAddress(byte_barriers);
  if (p.cluster > 1) {
    if (threadIdx.x == 0) {
      InitBarrier(barriers, 1);
      InitBarrier(barriers + 8, 1);
      PublishByteBarriers();
    }
    __syncwarp();
    ArriveAtCluster();  // waited for before the first write to another block's memory
  }

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int rank = blockIdx.x % p.cluster;
  const int first_tile = blockIdx.x / p.cluster;
  const int num_clusters = gridDim.x / p.cluster;
  const int rows = p.rows;
  const SkinnyLayout layout =
      MakeSkinnyLayout(rows, p.x_stride, p.in_dim, p.has_residual, p.stage_norms);
  using Tile = WeightTile<kType>;
  const WarpSegment segment = SegmentOfWarp<Tile, kDepth>(p, rank * kSkinnyWarps + warp, lane);
  const int k_begin = 64 * p.segments.Begin(rank * kSkinnyWarps);
  const int k_end = 64 * p.segments.Begin((rank + 1) * kSkinnyWarps);

  typename Tile::Stage stages[kDepth] = {};
  WeightStream<Tile> stream = {.tile = first_tile, .step = 0, .lane_steps = 0, .weights = {}};
  stream.SeekTile(p, segment);
#pragma unroll
  for (int j = 0; j < kDepth; ++j) stream.Load(j, stages[j]);
  stream.template Advance<kDepth>(p, segment, num_clusters);

  PrepareX(p, k_begin, k_end, layout, shared, norm_scratch);
  __syncthreads();
  const int own_pairs = kSkinnyPairs / p.cluster;
  const ClusterExchange exchange = {
      .sums = reinterpret_cast<const float2*>(shared + layout.exchange),
      .barriers = barriers,
      .rank = rank,
      .own_pairs = own_pairs,
      .own_pair = static_cast<int>(threadIdx.x % own_pairs),
      .own_row = static_cast<int>(threadIdx.x / own_pairs)};
  float* partials = reinterpret_cast<float*>(shared + layout.partials);
  const bf16* x_lane = reinterpret_cast<const bf16*>(shared + layout.x) +
                       min(segment.g, rows - 1) * p.x_stride + segment.k - k_begin + 8 * segment.t;
  const int pair = threadIdx.x % kSkinnyPairs;
  const int row = threadIdx.x / kSkinnyPairs;

  int sequence = 0;
  int tile = first_tile;
  for (; tile < p.num_tiles; tile += num_clusters, ++sequence) {
    float acc[4] = {};
    MultiplyTile<Tile, kDepth>(p, segment, x_lane, rows, num_clusters, stream, stages, acc);
    if (p.cluster > 1) {
      if (sequence == 0) {
        WaitForCluster();
      } else {
        exchange.Finish(p, tile - num_clusters, sequence - 1, rows);
      }
      if (threadIdx.x == 0) exchange.Expect(sequence, rows);
    }
    // Buffer n % 2 is written for tile n + 2 by warps that have passed the barrier of tile n + 1,
    // after everyone's last look at tile n.
    float* buffer = partials + (sequence & 1) * kSkinnyWarps * kWarpPartials;
    StorePartials(acc, segment, warp, buffer);
    __syncthreads();
    if (row < rows) {
      const float2 total = SumPartials(buffer, pair, row);
      if (p.cluster == 1) {
        StorePair(p.output, row, tile, pair, total.x, total.y);
      } else {
        exchange.Send(sequence, pair, row, rows, total);
      }
    }
  }
  if (p.cluster > 1) exchange.Finish(p, tile - num_clusters, sequence - 1, rows);
}

using SkinnyKernelPointer = void (*)(SkinnyParams);

// The kernel of a format and depth, which the format's own small file compiles.
template <TileType kType>
SkinnyKernelPointer SkinnyKernelFor(int depth);

template <TileType kType, int kIdx = 0>
SkinnyKernelPointer SkinnyKernelOfDepth(int depth) {
  constexpr SkinnyDepths kDepths = SkinnyDepthsOf(kType);
  if constexpr (kIdx == std::size(kDepths.values)) {
    CHECK(false) << depth << " steps of weights in flight";
    return nullptr;
  } else if constexpr (kDepths.values[kIdx] == 0) {
    return SkinnyKernelOfDepth<kType, std::size(kDepths.values)>(depth);
  } else {
    constexpr int kDepth = kDepths.values[kIdx];
    if (depth == kDepth) return SkinnyKernel<kType, kDepth>;
    return SkinnyKernelOfDepth<kType, kIdx + 1>(depth);
  }
}

}  // namespace lapidary::cuda
