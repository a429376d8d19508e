#include <algorithm>

#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/linear/linear_skinny.h"
#include "ops/cuda/linear/linear_skinny_input.cuh"
#include "ops/cuda/linear/linear_store.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/ptx/tma.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kStagedNormBytes = 24 * 1024;

// What registers allow.
constexpr int BlocksPerSm(int depth) { return depth <= 6 ? 3 : 2; }

// A row of x in shared memory: 64 bytes past a multiple of 128, so that the eight lanes of a phase
// (two rows, 64 bytes each) touch different banks.
int XStride(int in_dim, int cluster) {
  const int num_units = (in_dim + 63) / 64;
  return (num_units + cluster - 1) / cluster * 64 + 32;
}

// A warp's segment of k, in chunks of 32, and the lane's place in it: lane 4 g + t (mma.cuh).
struct WarpSegment {
  int k;  // its first value
  int num_chunks;
  int padded_chunks;  // of the longest segment, a multiple of the depth
  int lane_chunks;    // in which the lane's k is below in_dim
  int g;
  int t;
};

template <int kDepth>
__device__ __forceinline__ WarpSegment SegmentOfWarp(const SkinnyParams& p, int segment, int lane) {
  const int num_chunks = 2 * (p.segments.Begin(segment + 1) - p.segments.Begin(segment));
  const int max_chunks =
      2 * ((p.segments.num_units + p.segments.num_segments - 1) / p.segments.num_segments);
  const int padded_chunks = (max_chunks + kDepth - 1) / kDepth * kDepth;
  const int k = 64 * p.segments.Begin(segment);
  const int g = lane / 4;
  const int t = lane % 4;
  return {.k = k,
          .num_chunks = num_chunks,
          .padded_chunks = padded_chunks,
          .lane_chunks = min(num_chunks, max(0, (p.in_dim - k - 8 * t + 31) / 32)),
          .g = g,
          .t = t};
}

// Where the loads of weights that run ahead stand: chunks chunk .. chunk + kDepth - 1 of `tile` are
// next.
struct WeightStream {
  bool gated;
  int tile;
  int chunk;
  const bf16* low;  // the lane's features g and g + 8 of the tile, at its first k
  const bf16* high;

  __device__ __forceinline__ void SeekTile(const SkinnyParams& p, const WarpSegment& segment) {
    const int low_row = WeightRow(gated, p.weight_rows, tile, segment.g);
    const int high_row = WeightRow(gated, p.weight_rows, tile, segment.g + kSkinnyPairs);
    low = p.weight + static_cast<int64_t>(low_row) * p.in_dim + segment.k + 8 * segment.t;
    high = p.weight + static_cast<int64_t>(high_row) * p.in_dim + segment.k + 8 * segment.t;
  }
  // The chunk that is `ahead` further on.
  __device__ __forceinline__ void Load(const SkinnyParams& p, const WarpSegment& segment, int ahead,
                                       uint4& low_weights, uint4& high_weights) const {
    const int at = chunk + ahead;
    const bool valid = at < segment.lane_chunks && tile < p.num_tiles;
    low_weights = LoadWeight(low + 32 * at, valid);
    high_weights = LoadWeight(high + 32 * at, valid);
  }
  template <int kDepth>
  __device__ __forceinline__ void Advance(const SkinnyParams& p, const WarpSegment& segment,
                                          int num_clusters) {
    chunk += kDepth;
    if (chunk == segment.padded_chunks) {
      chunk = 0;
      tile += num_clusters;
      if (tile < p.num_tiles) SeekTile(p, segment);
    }
  }
};

// acc = the warp's segment of a tile's products, 16 features by 8 rows; the weights of the tile are
// in low and high, chunk j in j % kDepth, and those behind them are loaded in their place.
template <int kDepth>
__device__ __forceinline__ void MultiplyTile(const SkinnyParams& p, const WarpSegment& segment,
                                             const bf16* x_lane, int rows, int num_clusters,
                                             WeightStream& stream, uint4 (&low)[kDepth],
                                             uint4 (&high)[kDepth], float (&acc)[4]) {
  const auto load_x = [&](int chunk) -> uint4 {
    if (segment.g >= rows || chunk >= segment.num_chunks) return {0, 0, 0, 0};
    return *reinterpret_cast<const uint4*>(x_lane + 32 * chunk);
  };
  uint4 b = load_x(0);
  for (int first_chunk = 0; first_chunk < segment.padded_chunks; first_chunk += kDepth) {
#pragma unroll
    for (int j = 0; j < kDepth; ++j) {
      if (first_chunk + j < segment.num_chunks) {
        // One ahead: shared memory answers while the tensor core works.
        const uint4 b_now = b;
        b = load_x(first_chunk + j + 1);
        MmaChunk(acc, low[j], high[j], b_now);
      }
      __syncwarp();  // or the compiler gathers all loads behind the last mma
      stream.Load(p, segment, j, low[j], high[j]);
    }
    stream.Advance<kDepth>(p, segment, num_clusters);
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

// kDepth: chunks of 32 k in flight per warp.
//
// Each cluster takes every num_clusters-th tile. A warp walks its segment of one tile after the
// other; loads run kDepth chunks ahead, across tiles, so barriers do not drain them.
template <int kDepth>
__global__ void __launch_bounds__(kSkinnyThreads, BlocksPerSm(kDepth))
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
  const WarpSegment segment = SegmentOfWarp<kDepth>(p, rank * kSkinnyWarps + warp, lane);
  const int k_begin = 64 * p.segments.Begin(rank * kSkinnyWarps);
  const int k_end = 64 * p.segments.Begin((rank + 1) * kSkinnyWarps);

  uint4 low[kDepth], high[kDepth];
  WeightStream stream = {.gated = p.output.epilogue == Epilogue::kGatedGelu,
                         .tile = first_tile,
                         .chunk = 0,
                         .low = nullptr,
                         .high = nullptr};
  stream.SeekTile(p, segment);
#pragma unroll
  for (int j = 0; j < kDepth; ++j) stream.Load(p, segment, j, low[j], high[j]);
  stream.Advance<kDepth>(p, segment, num_clusters);

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
  const bf16* x_lane = reinterpret_cast<const bf16*>(shared + layout.x) + segment.g * p.x_stride +
                       segment.k - k_begin + 8 * segment.t;
  const int pair = threadIdx.x % kSkinnyPairs;
  const int row = threadIdx.x / kSkinnyPairs;

  int sequence = 0;
  int tile = first_tile;
  for (; tile < p.num_tiles; tile += num_clusters, ++sequence) {
    float acc[4] = {};
    MultiplyTile<kDepth>(p, segment, x_lane, rows, num_clusters, stream, low, high, acc);
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

SkinnyKernelPointer KernelFor(int depth) {
  return depth == 4 ? SkinnyKernel<4> : depth == 6 ? SkinnyKernel<6> : SkinnyKernel<8>;
}

constexpr int kStaticSharedBytes = 256;  // at most

// Dynamic shared memory of a block: at most, and so that two blocks share an SM.
int MaxSharedBytes(const DeviceInfo& device) { return device.shared_bytes_per_block - 1024; }
int SharedBytesForTwoBlocks(const DeviceInfo& device) {
  return device.shared_bytes_per_sm / 2 - 2 * 1024;
}

bool StageNorms(int in_dim) { return 2 * in_dim * sizeof(float) <= kStagedNormBytes; }

int SharedBytes(const LinearCall& call, const SkinnyPlan& plan, bool has_residual) {
  return MakeSkinnyLayout(call.rows, XStride(call.in_dim(), plan.cluster), call.in_dim(),
                          has_residual, StageNorms(call.in_dim()))
      .total;
}

}  // namespace

SkinnyPlan PlanSkinny(const LinearCall& call) {
  // Measured at the models' shapes (docs/notes/2026-11-few-rows.md): slices of k up to these
  // lengths stream best, and all of a short slice at once.
  const int num_units = (call.in_dim() + 63) / 64;
  SkinnyPlan plan;
  plan.cluster = call.in_dim() <= 3072 ? 1 : call.in_dim() <= 10240 ? 2 : 4;
  while (plan.cluster > 1 && num_units < plan.cluster * kSkinnyWarps) plan.cluster /= 2;
  const int num_segments = plan.cluster * kSkinnyWarps;
  const int chunks = 2 * ((num_units + num_segments - 1) / num_segments);
  plan.depth = chunks <= 4 ? 4 : 8;
  return plan;
}

bool SkinnyFits(const DeviceInfo& device, const LinearCall& call, const SkinnyPlan& plan) {
  return call.rows <= kMaxStreamedRows && SharedBytes(call, plan, false) <= MaxSharedBytes(device);
}

void RunSkinny(const LaunchContext& context, const LinearCall& call, const SkinnyPlan& plan) {
  const DeviceInfo& device = context.Device();
  CHECK(call.rows >= 1 && call.rows <= kMaxStreamedRows) << call.rows << " rows";
  CHECK(plan.cluster == 1 || plan.cluster == 2 || plan.cluster == 4 || plan.cluster == 8);
  CHECK(plan.depth == 4 || plan.depth == 6 || plan.depth == 8);

  SkinnyParams params{};
  params.weight = Bf16Values(call.weight);
  params.x = call.x;
  params.output = MakeLinearOutput(call);
  params.in_dim = call.in_dim();
  params.weight_rows = call.out_dim();
  params.rows = call.rows;
  params.num_tiles = NumLinearTiles(call);
  params.cluster = plan.cluster;
  params.segments = {.num_units = (call.in_dim() + 63) / 64,
                     .num_segments = kSkinnyWarps * plan.cluster};
  params.x_stride = XStride(call.in_dim(), plan.cluster);
  params.stage_norms = StageNorms(call.in_dim());

  if (call.residual != nullptr) {
    params.has_residual = call.rows <= plan.fused_residual_rows &&
                          SharedBytes(call, plan, true) <= SharedBytesForTwoBlocks(device);
    if (params.has_residual) {
      params.residual = *call.residual;
    } else {
      CHECK(call.x != nullptr) << "the residual update of " << call.rows << " rows needs scratch";
      RunResidualUpdate(context, *call.residual, call.rows, call.in_dim(), call.x);
    }
  }
  const int shared_bytes = SharedBytes(call, plan, params.has_residual);
  CHECK_LE(shared_bytes, MaxSharedBytes(device)) << "in_dim " << call.in_dim() << " is too large";

  const int taken_bytes = shared_bytes + kStaticSharedBytes + device.reserved_shared_bytes;
  const int blocks_per_sm =
      std::clamp(std::min(BlocksPerSm(plan.depth), device.shared_bytes_per_sm / taken_bytes), 1,
                 plan.blocks_per_sm);
  // No more clusters than run at once, each with the same number of tiles but for the last.
  const int max_clusters = std::max(1, device.num_sms * blocks_per_sm / plan.cluster);
  const int tiles_per_cluster = (params.num_tiles + max_clusters - 1) / max_clusters;
  const int num_clusters = (params.num_tiles + tiles_per_cluster - 1) / tiles_per_cluster;

  LaunchClusters(context, KernelFor(plan.depth), plan.cluster, dim3(num_clusters * plan.cluster),
                 dim3(kSkinnyThreads), shared_bytes, params);
}

}  // namespace lapidary::cuda
