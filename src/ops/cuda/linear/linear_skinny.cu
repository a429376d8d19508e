#include <algorithm>

#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/linear/linear_skinny.h"
#include "ops/cuda/linear/linear_store.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/ptx/tma.cuh"
#include "ops/cuda/row_norm.cuh"

namespace lapidary::cuda {
namespace {

static_assert(kSkinnyThreads == kNormThreads, "the residual update runs on the same threads");

constexpr int kFeatures = 16;               // of a tile: the rows of one mma
constexpr int kPairs = kFeatures / 2;       // a lane holds features g and g + 8
constexpr int kColumns = kMaxStreamedRows;  // rows of x: the columns of one mma
static_assert(kColumns == 8);
constexpr int kStagedNormBytes = 24 * 1024;

// What registers allow.
constexpr int BlocksPerSm(int depth) { return depth <= 6 ? 3 : 2; }

// The number of segments and what each covers, in units of 64 values.
struct SkinnySegments {
  int num_units = 0;
  int num_segments = 0;
  __host__ __device__ int Begin(int segment) const { return segment * num_units / num_segments; }
};

struct SkinnyParams {
  const bf16* weight;
  const bf16* x;
  LinearOutput output;
  int in_dim;
  int weight_rows;
  int rows;
  int num_tiles;
  int cluster;
  SkinnySegments segments;
  int x_stride;  // of a row of x in shared memory
  bool has_residual;
  bool stage_norms;
  ResidualUpdate residual;
};

// Shared memory: partial sums, x, then what the residual update needs. Byte offsets, all multiples
// of 16.
struct SharedLayout {
  int partials = 0;   // f32 [2][warps][kPairs][2][columns]
  int exchange = 0;   // f32 [2][cluster][kPairs / cluster][rows][2]
  int x = 0;          // bf16 [rows][x_stride]
  int norms = 0;      // f32 [2][in_dim], only when staged
  int hidden = 0;     // f32 [rows][in_dim]
  int block_out = 0;  // bf16 [rows][in_dim]
  int total = 0;
};

__host__ __device__ __forceinline__ SharedLayout MakeSharedLayout(int rows, int x_stride,
                                                                  int in_dim, bool has_residual,
                                                                  bool stage_norms) {
  SharedLayout layout;
  int offset = 2 * kSkinnyWarps * kFeatures * kColumns * static_cast<int>(sizeof(float));
  layout.exchange = offset;
  offset += 2 * kFeatures * rows * static_cast<int>(sizeof(float));
  layout.x = offset;
  offset += rows * x_stride * static_cast<int>(sizeof(bf16));
  layout.norms = offset;
  if (has_residual) {
    if (stage_norms) offset += 2 * in_dim * static_cast<int>(sizeof(float));
    layout.hidden = offset;
    offset += rows * in_dim * static_cast<int>(sizeof(float));
    layout.block_out = offset;
    offset += rows * in_dim * static_cast<int>(sizeof(bf16));
  }
  layout.total = offset;
  return layout;
}

// A row of x in shared memory: 64 bytes past a multiple of 128, so that the eight lanes of a phase
// (two rows, 64 bytes each) touch different banks.
int XStride(int in_dim, int cluster) {
  const int num_units = (in_dim + 63) / 64;
  return (num_units + cluster - 1) / cluster * 64 + 32;
}

// x of this block's slice [k_begin, k_end) into shared memory, zeros past in_dim.
__device__ __forceinline__ void CopyX(const SkinnyParams& p, int k_begin, int k_end,
                                      bf16* x_shared) {
  const int num_vectors = (k_end - k_begin) / 8;
  const bf16* x = p.x;
#pragma unroll 1
  for (int row = 0; row < p.rows; ++row) {
#pragma unroll 1
    for (int i = threadIdx.x; i < num_vectors; i += kSkinnyThreads) {
      const int k = k_begin + 8 * i;
      const bool valid = k < p.in_dim;
      CopyAsync(x_shared + row * p.x_stride + 8 * i, x + (valid ? k : 0), valid);
    }
    x += p.in_dim;
  }
  CommitCopies();
}

__device__ __forceinline__ void StageNorms(const SkinnyParams& p, float* norms) {
#pragma unroll 1
  for (int i = threadIdx.x; i < p.in_dim / 4; i += kSkinnyThreads) {
    if (p.residual.post_norm != nullptr) CopyAsync(norms + 4 * i, p.residual.post_norm + 4 * i);
    if (p.residual.pre_norm != nullptr) {
      CopyAsync(norms + p.in_dim + 4 * i, p.residual.pre_norm + 4 * i);
    }
  }
  CommitCopies();
}

// The residual update of all rows; the slice [k_begin, k_end) of x goes to shared memory.
__device__ __forceinline__ void UpdateResidual(const SkinnyParams& p, int rows, int k_begin,
                                               int k_end, bool writes_hidden, const float* norms,
                                               float* hidden, bf16* block_out, bf16* x_shared,
                                               float (*scratch)[kNormWarps]) {
  const ResidualUpdate& update = p.residual;
  const int num_quads = p.in_dim / 4;
  const bool has_block_out = update.block_out != nullptr;
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    const int start = row * p.in_dim;
#pragma unroll 1
    for (int i = threadIdx.x; i < num_quads; i += kSkinnyThreads) {
      CopyAsync(hidden + start + 4 * i, update.hidden + start + 4 * i);
      if (has_block_out && i < num_quads / 2) {
        CopyAsync(block_out + start + 8 * i, update.block_out + start + 8 * i);
      }
    }
  }
  CommitCopies();
  // Past in_dim, up to the end of its unit, x is zero.
  for (int k = max(k_begin, p.in_dim) + static_cast<int>(threadIdx.x); k < k_end;
       k += kSkinnyThreads) {
    for (int row = 0; row < rows; ++row) {
      x_shared[row * p.x_stride + k - k_begin] = __float2bfloat16_rn(0.0f);
    }
  }
  WaitForCopies<0>();
  __syncthreads();

  const float4* post_norm =
      reinterpret_cast<const float4*>(p.stage_norms ? norms : update.post_norm);
  const float4* pre_norm =
      reinterpret_cast<const float4*>(p.stage_norms ? norms + p.in_dim : update.pre_norm);
  int num_sums = 0;
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    float4* h_row = reinterpret_cast<float4*>(hidden + row * p.in_dim);
    const uint2* block_row = reinterpret_cast<const uint2*>(block_out + row * p.in_dim);
    float inverse_rms = 0.0f;
    if (has_block_out) {
      float sum = 0.0f;
#pragma unroll 1
      for (int i = threadIdx.x; i < num_quads; i += kSkinnyThreads) {
        sum = AddSquares(sum, UnpackBf16x4(block_row[i]));
      }
      inverse_rms = InverseRms(BlockSum(sum, scratch[num_sums++ & 1]), p.in_dim, update.eps);
    }
    float sum = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x; i < num_quads; i += kSkinnyThreads) {
      float4 addend = {0.0f, 0.0f, 0.0f, 0.0f};
      if (has_block_out) addend = Normed(UnpackBf16x4(block_row[i]), inverse_rms, post_norm[i]);
      const float4 h = Updated(h_row[i], addend, update.scale);
      if (writes_hidden) {
        reinterpret_cast<float4*>(update.hidden_out + static_cast<int64_t>(row) * p.in_dim)[i] = h;
      }
      sum = AddSquares(sum, h);
      h_row[i] = h;
    }
    inverse_rms = InverseRms(BlockSum(sum, scratch[num_sums++ & 1]), p.in_dim, update.eps);
#pragma unroll 1
    for (int i = threadIdx.x; i < num_quads; i += kSkinnyThreads) {
      if (4 * i < k_begin || 4 * i >= k_end) continue;
      float4 h = h_row[i];
      if (update.pre_norm != nullptr) h = Normed(h, inverse_rms, pre_norm[i]);
      *reinterpret_cast<uint2*>(x_shared + row * p.x_stride + 4 * i - k_begin) = PackBf16x4(h);
    }
  }
}

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
  const int g = lane / 4;
  const int t = lane % 4;
  const int rank = blockIdx.x % p.cluster;
  const int first_tile = blockIdx.x / p.cluster;
  const int num_clusters = gridDim.x / p.cluster;
  const int rows = p.rows;
  const bool gated = p.output.epilogue == Epilogue::kGatedGelu;
  const SharedLayout layout =
      MakeSharedLayout(rows, p.x_stride, p.in_dim, p.has_residual, p.stage_norms);

  const int segment = rank * kSkinnyWarps + warp;
  const int num_chunks = 2 * (p.segments.Begin(segment + 1) - p.segments.Begin(segment));
  const int max_chunks =
      2 * ((p.segments.num_units + p.segments.num_segments - 1) / p.segments.num_segments);
  const int padded_chunks = (max_chunks + kDepth - 1) / kDepth * kDepth;
  const int k_segment = 64 * p.segments.Begin(segment);
  const int k_begin = 64 * p.segments.Begin(rank * kSkinnyWarps);
  const int k_end = 64 * p.segments.Begin((rank + 1) * kSkinnyWarps);

  // The loads that run ahead: chunks load_chunk .. load_chunk + kDepth - 1 of load_tile are next.
  uint4 low[kDepth], high[kDepth];
  int load_tile = first_tile;
  int load_chunk = 0;
  const bf16* load_low = nullptr;
  const bf16* load_high = nullptr;
  const auto seek_tile = [&] {
    const int low_row = WeightRow(gated, p.weight_rows, load_tile, g);
    const int high_row = WeightRow(gated, p.weight_rows, load_tile, g + kPairs);
    load_low = p.weight + static_cast<int64_t>(low_row) * p.in_dim + k_segment + 8 * t;
    load_high = p.weight + static_cast<int64_t>(high_row) * p.in_dim + k_segment + 8 * t;
  };
  // Valid k of this lane, as a number of chunks.
  const int lane_chunks = min(num_chunks, max(0, (p.in_dim - k_segment - 8 * t + 31) / 32));
  const auto load = [&](int j) {
    const int chunk = load_chunk + j;
    const bool valid = chunk < lane_chunks && load_tile < p.num_tiles;
    low[j] = LoadWeight(load_low + 32 * chunk, valid);
    high[j] = LoadWeight(load_high + 32 * chunk, valid);
  };
  const auto advance_loads = [&] {
    load_chunk += kDepth;
    if (load_chunk == padded_chunks) {
      load_chunk = 0;
      load_tile += num_clusters;
      if (load_tile < p.num_tiles) seek_tile();
    }
  };
  seek_tile();
#pragma unroll
  for (int j = 0; j < kDepth; ++j) load(j);
  advance_loads();

  bf16* x_shared = reinterpret_cast<bf16*>(shared + layout.x);
  if (p.has_residual) {
    float* norms = reinterpret_cast<float*>(shared + layout.norms);
    if (p.stage_norms) StageNorms(p, norms);
    WaitForPreviousKernel();
    UpdateResidual(p, rows, k_begin, k_end, blockIdx.x == 0 && p.residual.hidden_out != nullptr,
                   norms, reinterpret_cast<float*>(shared + layout.hidden),
                   reinterpret_cast<bf16*>(shared + layout.block_out), x_shared, norm_scratch);
  } else {
    WaitForPreviousKernel();
    CopyX(p, k_begin, k_end, x_shared);
    WaitForCopies<0>();
  }
  __syncthreads();

  // In a cluster a block finishes kPairs / cluster pairs of each tile. The other blocks send their
  // sums of tile n while it computes tile n + 1. They may overwrite what they sent for tile n - 2:
  // a block sends tile n after it has finished n - 1, so who has received all of tile n - 1 knows
  // that everyone is done with tile n - 2.
  const int own_pairs = kPairs / p.cluster;
  const float2* exchange = reinterpret_cast<const float2*>(shared + layout.exchange);
  const int own_pair = threadIdx.x % own_pairs;
  const int own_row = threadIdx.x / own_pairs;
  const auto finish = [&](int tile, int sequence) {
    if (own_row >= rows) return;
    WaitForBytes(barriers + 8 * (sequence & 1), (sequence >> 1) & 1);
    const float2* sums = exchange + ((sequence & 1) * kPairs + own_pair) * rows + own_row;
    float2 total = sums[0];
#pragma unroll 1
    for (int r = 1; r < p.cluster; ++r) {
      const float2 other = sums[r * own_pairs * rows];
      total.x += other.x;
      total.y += other.y;
    }
    StorePair(p.output, own_row, tile, rank * own_pairs + own_pair, total.x, total.y);
  };
  const int pair = threadIdx.x % kPairs;
  const int row = threadIdx.x / kPairs;
  const auto send = [&](int sequence, float low_sum, float high_sum) {
    const int offset = ((sequence & 1) * kPairs + rank * own_pairs + pair % own_pairs) * rows + row;
    const uint32_t target = pair / own_pairs;
    SendToBlock(AddressInBlock(SharedAddress(exchange + offset), target),
                AddressInBlock(barriers + 8 * (sequence & 1), target),
                make_float2(low_sum, high_sum));
  };

  float* partials = reinterpret_cast<float*>(shared + layout.partials);
  constexpr int kWarpPartials = kFeatures * kColumns;
  constexpr int kBufferPartials = kSkinnyWarps * kWarpPartials;
  const bf16* x_lane = x_shared + g * p.x_stride + k_segment - k_begin + 8 * t;

  const auto load_x = [&](int chunk) -> uint4 {
    if (g >= rows || chunk >= num_chunks) return {0, 0, 0, 0};
    return *reinterpret_cast<const uint4*>(x_lane + 32 * chunk);
  };

  int sequence = 0;
  int tile = first_tile;
  for (; tile < p.num_tiles; tile += num_clusters, ++sequence) {
    float acc[4] = {};
    uint4 b = load_x(0);
    for (int first_chunk = 0; first_chunk < padded_chunks; first_chunk += kDepth) {
#pragma unroll
      for (int j = 0; j < kDepth; ++j) {
        if (first_chunk + j < num_chunks) {
          // One ahead: shared memory answers while the tensor core works.
          const uint4 b_now = b;
          b = load_x(first_chunk + j + 1);
          MmaChunk(acc, low[j], high[j], b_now);
        }
        __syncwarp();  // or the compiler gathers all loads behind the last mma
        load(j);
      }
      advance_loads();
    }
    if (p.cluster > 1) {
      if (sequence == 0) {
        WaitForCluster();
      } else {
        finish(tile - num_clusters, sequence - 1);
      }
      if (threadIdx.x == 0) {
        ExpectBytes(barriers + 8 * (sequence & 1), kPairs * rows * sizeof(float2));
      }
    }
    // Buffer n % 2 is written for tile n + 2 by warps that have passed the barrier of tile n + 1,
    // after everyone's last look at tile n.
    float* buffer = partials + (sequence & 1) * kBufferPartials;
    float* target = buffer + warp * kWarpPartials + 2 * g * kColumns + 2 * t;
    *reinterpret_cast<float2*>(target) = {acc[0], acc[1]};
    *reinterpret_cast<float2*>(target + kColumns) = {acc[2], acc[3]};
    __syncthreads();
    if (row < rows) {
      const float* sums = buffer + 2 * pair * kColumns + row;
      float low_sum = sums[0];
      float high_sum = sums[kColumns];
#pragma unroll
      for (int w = 1; w < kSkinnyWarps; ++w) {
        low_sum += sums[w * kWarpPartials];
        high_sum += sums[w * kWarpPartials + kColumns];
      }
      if (p.cluster == 1) {
        StorePair(p.output, row, tile, pair, low_sum, high_sum);
      } else {
        send(sequence, low_sum, high_sum);
      }
    }
  }
  if (p.cluster > 1) finish(tile - num_clusters, sequence - 1);
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
  return MakeSharedLayout(call.rows, XStride(call.in_dim(), plan.cluster), call.in_dim(),
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
