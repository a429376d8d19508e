#include <algorithm>

#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/linear/linear_wide.h"
#include "ops/cuda/linear/linear_wide_finish.cuh"
#include "ops/cuda/linear/linear_wide_tiles.h"
#include "ops/cuda/linear/tensor_map.h"
#include "ops/cuda/ptx/wgmma.cuh"

namespace lapidary::cuda {
namespace {

static_assert(kWideKBlock == kSwizzledRowValues);
constexpr int kMaxStages = 12;

template <int kTileRows>
__device__ __forceinline__ void SyncConsumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(32 * WideConsumerWarps(kTileRows)) : "memory");
}

// What a block computes: rows [first_row, first_row + num_rows) of every tiles_at_once-th tile, of
// its part [k_begin, k_end) of the sum, in blocks of 64 values.
struct WideWork {
  int rank;  // in the split
  int first_tile;
  int tiles_at_once;
  int first_row;
  int num_rows;
  int k_begin;
  int k_end;
  int rows_of_block;  // the blocks of a split finish so many rows each, the last ones fewer

  __device__ __forceinline__ int NumOwnRows(int of_rank) const {
    return max(0, min(rows_of_block, num_rows - of_rank * rows_of_block));
  }
};

// Clusters that share a tile's weights lie beside each other, and find them in L2.
template <int kColumns>
__device__ __forceinline__ WideWork WorkOfBlock(const WideParams& p) {
  const int rank = blockIdx.x % p.split;
  const int cluster = blockIdx.x / p.split;
  const int first_row = cluster % p.row_parts * kColumns;
  const int num_rows = min(kColumns, p.rows - first_row);
  return {.rank = rank,
          .first_tile = cluster / p.row_parts,
          .tiles_at_once = static_cast<int>(gridDim.x / (p.split * p.row_parts)),
          .first_row = first_row,
          .num_rows = num_rows,
          .k_begin = rank * p.num_k_blocks / p.split,
          .k_end = (rank + 1) * p.num_k_blocks / p.split,
          .rows_of_block = (num_rows + p.split - 1) / p.split};
}

// Shared memory addresses: the ring of stages and its barriers, and the one of what the blocks of a
// split send.
struct WideRing {
  uint32_t stages;
  uint32_t full;
  uint32_t empty;
  uint32_t exchanged;
};

// The producer's position in its stream of copies, over all tiles of this block.
struct CopyPosition {
  int tile;
  int k;
  RingPosition ring;

  __device__ __forceinline__ void Advance(const WideWork& work, int num_stages) {
    ring.Advance(num_stages);
    if (++k == work.k_end) {
      k = work.k_begin;
      tile += work.tiles_at_once;
    }
  }
};

// Both halves of a tile's weight rows (with kGatedGelu gate and up rows); the stage's barrier
// expects its x as well.
template <int kTileRows, int kColumns>
__device__ __forceinline__ void CopyWeight(const CUtensorMap& map, const WideParams& p,
                                           const WideRing& ring, const CopyPosition& at,
                                           BoxUse use) {
  constexpr int kStageBytes = WideStageBytes(kTileRows, kColumns);
  const uint32_t barrier = ring.full + 8 * at.ring.slot;
  const uint32_t target = ring.stages + at.ring.slot * kStageBytes;
  const int row = at.tile * p.tile_step;
  ExpectBytes(barrier, kStageBytes);
  CopyBox(map, row, at.k * kSwizzledRowValues, target, barrier, use);
  CopyBox(map, row + p.second_half, at.k * kSwizzledRowValues,
          target + kTileRows / 2 * kSwizzledRowBytes, barrier, use);
}

template <int kTileRows, int kColumns>
__device__ __forceinline__ void CopyX(const CUtensorMap& map, const WideRing& ring,
                                      const CopyPosition& at, int first_row) {
  CopyBox(map, first_row, at.k * kSwizzledRowValues,
          ring.stages + at.ring.slot * WideStageBytes(kTileRows, kColumns) +
              kTileRows * kSwizzledRowBytes,
          ring.full + 8 * at.ring.slot, BoxUse::kAgain);
}

// The producer, before the kernel before is done: barriers, and the weights of as many stages as
// there are. Returns their number.
template <int kTileRows, int kColumns>
__device__ __forceinline__ int StartProducer(const CUtensorMap& weight_map,
                                             const CUtensorMap& x_map, const WideParams& p,
                                             const WideRing& ring, const WideWork& work,
                                             BoxUse weight_use) {
  PrefetchMap(weight_map);
  PrefetchMap(x_map);
  for (int stage = 0; stage < p.stages; ++stage) {
    InitBarrier(ring.full + 8 * stage, 1);
    InitBarrier(ring.empty + 8 * stage, WideConsumerWarps(kTileRows));
  }
  InitBarrier(ring.exchanged, 1);
  PublishBarriers();
  CopyPosition at{work.first_tile, work.k_begin, {}};
  int ahead = 0;
  for (; ahead < p.stages && at.tile < p.num_tiles; ++ahead) {
    CopyWeight<kTileRows, kColumns>(weight_map, p, ring, at, weight_use);
    at.Advance(work, p.stages);
  }
  ExpectBytes(ring.exchanged, p.split * work.NumOwnRows(work.rank) * WideRowBytes(kTileRows));
  return ahead;
}

// The producer, after it: x of the stages that have their weights, then stage by stage as they
// become free.
template <int kTileRows, int kColumns>
__device__ __forceinline__ void RunProducer(const CUtensorMap& weight_map, const CUtensorMap& x_map,
                                            const WideParams& p, const WideRing& ring,
                                            const WideWork& work, BoxUse weight_use, int ahead) {
  CopyPosition at{work.first_tile, work.k_begin, {}};
  for (; ahead > 0; --ahead) {
    CopyX<kTileRows, kColumns>(x_map, ring, at, work.first_row);
    at.Advance(work, p.stages);
  }
  while (at.tile < p.num_tiles) {
    AwaitBarrier(ring.empty + 8 * at.ring.slot, at.ring.parity ^ 1);
    CopyWeight<kTileRows, kColumns>(weight_map, p, ring, at, weight_use);
    CopyX<kTileRows, kColumns>(x_map, ring, at, work.first_row);
    at.Advance(work, p.stages);
  }
}

// A consumer warp's part of a tile: its warpgroup's 64 weight rows by kGroupColumns rows of x.
template <int kTileRows, int kColumns>
struct WarpPart {
  static constexpr int kGroupColumns = kTileRows == 64 ? kColumns / 2 : kColumns;
  using Sums = float[kGroupColumns / 2];

  int warp;
  int lane;
  int first_weight_row;
  int first_column;

  __device__ __forceinline__ WarpPart(int warp, int lane)
      : warp(warp),
        lane(lane),
        first_weight_row(kTileRows == 64 ? 0 : 64 * (warp / 4)),
        first_column(kTileRows == 64 ? kGroupColumns * (warp / 4) : 0) {}
};

// The products of a tile, of the block's part of k.
template <int kTileRows, int kColumns>
__device__ __forceinline__ void MultiplyTile(const WarpPart<kTileRows, kColumns>& part,
                                             const WideRing& ring, int k_begin, int k_end,
                                             int num_stages, RingPosition& at,
                                             typename WarpPart<kTileRows, kColumns>::Sums& acc) {
  constexpr int kGroupColumns = WarpPart<kTileRows, kColumns>::kGroupColumns;
#pragma unroll
  for (float& value : acc) value = 0.0f;
  int last_slot = -1;
  for (int k = k_begin; k < k_end; ++k) {
    AwaitBarrier(ring.full + 8 * at.slot, at.parity);
    const uint32_t stage = ring.stages + at.slot * WideStageBytes(kTileRows, kColumns);
    const uint64_t a = SwizzledOperand(stage + part.first_weight_row * kSwizzledRowBytes);
    const uint64_t b = SwizzledOperand(stage + kTileRows * kSwizzledRowBytes +
                                       part.first_column * kSwizzledRowBytes);
    WgmmaBegin();
#pragma unroll
    for (int step = 0; step < kSwizzledRowValues / 16; ++step) {
      Wgmma<kGroupColumns>::Run(acc, a + 2 * step, b + 2 * step);
    }
    WgmmaCommit();
    // All but the newest are done, so the slot before is free.
    WgmmaWait<1>();
    if (part.lane == 0 && last_slot >= 0) ArriveAtBarrier(ring.empty + 8 * last_slot);
    last_slot = at.slot;
    at.Advance(num_stages);
  }
  WgmmaWait<0>();
  if (part.lane == 0) ArriveAtBarrier(ring.empty + 8 * last_slot);
}

// The sums into shared memory, f32 [kColumns][kTileRows + kWidePadding].
template <int kTileRows, int kColumns>
__device__ __forceinline__ void StageSums(const WarpPart<kTileRows, kColumns>& part,
                                          const typename WarpPart<kTileRows, kColumns>::Sums& acc,
                                          float* staged) {
  constexpr int kStride = kTileRows + kWidePadding;
  const int g = part.lane / 4;
  const int t = part.lane % 4;
  float* const lane_sums = staged + (part.first_column + 2 * t) * kStride + part.first_weight_row +
                           16 * (part.warp % 4) + g;
#pragma unroll
  for (int j = 0; j < WarpPart<kTileRows, kColumns>::kGroupColumns / 8; ++j) {
    float* const target = lane_sums + 8 * j * kStride;
    target[0] = acc[4 * j];
    target[kStride] = acc[4 * j + 1];
    target[8] = acc[4 * j + 2];
    target[kStride + 8] = acc[4 * j + 3];
  }
}

// A block of a split sends every other one the staged sums of the rows that one finishes, and
// receives its own from all: f32 [split][rows_of_block][kTileRows + kWidePadding], behind the
// staged ones.
template <int kTileRows, int kColumns>
__device__ __forceinline__ void ExchangeSums(const WideRing& ring, const WideWork& work, int split,
                                             uint32_t staging) {
  constexpr int kRowBytes = WideRowBytes(kTileRows);
  PublishToCopies();
  AwaitCluster();
  SyncConsumers<kTileRows>();
  const int target = threadIdx.x;
  if (target < split && work.NumOwnRows(target) > 0) {
    const uint32_t num_bytes = work.NumOwnRows(target) * kRowBytes;
    const uint32_t received = staging + WideStagingBytes(kTileRows, kColumns) +
                              work.rank * work.rows_of_block * kRowBytes;
    CopyToBlock(AddressInBlock(received, target), staging + target * work.rows_of_block * kRowBytes,
                num_bytes, AddressInBlock(ring.exchanged, target));
  }
  AwaitBarrier(ring.exchanged, 0);
  TellCluster();  // that what was sent to this block has arrived
}

// Shared memory: a ring of stages (weight [kTileRows][64], x [kColumns][64]), and the sums as
// f32 [kColumns][kTileRows + kWidePadding], in the ring's place where a block has but one tile.
// With a split, what its blocks send follows: f32 [split][rows that this block finishes][the same].
template <int kTileRows, int kColumns>
__global__ void __launch_bounds__(WideThreads(kTileRows), WideBlocksPerSm(kTileRows))
    WideKernel(const __grid_constant__ CUtensorMap weight_map,
               const __grid_constant__ CUtensorMap x_map, const __grid_constant__ WideParams p) {
  constexpr int kConsumerWarps = WideConsumerWarps(kTileRows);
  extern __shared__ unsigned char dynamic_shared[];
  __shared__ uint64_t barriers[2 * kMaxStages + 1];
  AllowNextKernel();

  const int warp = threadIdx.x / 32;
  const bool is_producer = threadIdx.x == 32 * kConsumerWarps;
  const uint32_t full = SharedAddress(barriers);
  const WideRing ring = {.stages = (SharedAddress(dynamic_shared) + 1023) & ~1023u,
                         .full = full,
                         .empty = full + 8 * kMaxStages,
                         .exchanged = full + 16 * kMaxStages};
  const WideWork work = WorkOfBlock<kColumns>(p);
  const BoxUse weight_use = p.row_parts > 1 ? BoxUse::kNormal : BoxUse::kOnce;
  int ahead = 0;
  if (is_producer) {
    ahead = StartProducer<kTileRows, kColumns>(weight_map, x_map, p, ring, work, weight_use);
  }
  __syncthreads();
  WaitForPreviousKernel();

  if (warp == kConsumerWarps) {
    if (is_producer) {
      RunProducer<kTileRows, kColumns>(weight_map, x_map, p, ring, work, weight_use, ahead);
    }
    __syncwarp();
    if (p.split > 1) {
      TellCluster();
      AwaitCluster();
      TellCluster();
    }
  } else {
    const WarpPart<kTileRows, kColumns> part(warp, threadIdx.x % 32);
    const uint32_t staging = ring.stages + p.staging;
    float* const staged =
        reinterpret_cast<float*>(dynamic_shared + (staging - SharedAddress(dynamic_shared)));
    RingPosition at;
    for (int tile = work.first_tile; tile < p.num_tiles; tile += work.tiles_at_once) {
      typename WarpPart<kTileRows, kColumns>::Sums acc;
      MultiplyTile<kTileRows, kColumns>(part, ring, work.k_begin, work.k_end, p.stages, at, acc);
      if (p.split > 1) TellCluster();  // that this ring is out of use
      // The staged sums' place is free: of the ring or of the tile before.
      SyncConsumers<kTileRows>();
      StageSums<kTileRows, kColumns>(part, acc, staged);
      const float* sums = staged;
      if (p.split > 1) {
        ExchangeSums<kTileRows, kColumns>(ring, work, p.split, staging);
        sums = staged + WideStagingBytes(kTileRows, kColumns) / sizeof(float);
      } else {
        SyncConsumers<kTileRows>();
      }
      const int part_stride = work.rows_of_block * (kTileRows + kWidePadding);
      const int own_row = work.first_row + work.rank * work.rows_of_block;
      const int num_own_rows = work.NumOwnRows(work.rank);
      if (p.output.epilogue == Epilogue::kGatedGelu) {
        FinishRows<kTileRows, true>(p, sums, part_stride, own_row, num_own_rows, tile);
      } else {
        FinishRows<kTileRows, false>(p, sums, part_stride, own_row, num_own_rows, tile);
      }
    }
  }
  // Until all copies out of this block have arrived.
  if (p.split > 1) AwaitCluster();
}

using WideKernelPointer = void (*)(CUtensorMap, CUtensorMap, WideParams);

template <int kTileRows>
WideKernelPointer KernelForColumns(int columns) {
  switch (columns) {
    case 16:
      return WideKernel<kTileRows, 16>;
    case 32:
      return WideKernel<kTileRows, 32>;
    case 48:
      return WideKernel<kTileRows, 48>;
    case 64:
      return WideKernel<kTileRows, 64>;
    case 80:
      return WideKernel<kTileRows, 80>;
    case 96:
      return WideKernel<kTileRows, 96>;
    case 112:
      return WideKernel<kTileRows, 112>;
    default:
      CHECK_EQ(columns, 128);
      return WideKernel<kTileRows, 128>;
  }
}

WideKernelPointer KernelFor(int tile_rows, int columns) {
  return tile_rows == 64    ? KernelForColumns<64>(columns)
         : tile_rows == 128 ? KernelForColumns<128>(columns)
                            : KernelForColumns<192>(columns);
}

constexpr int kAlignmentBytes = 1024;

// Dynamic shared memory of a block: at most, and so that there is room for another one and for a
// small kernel beside.
int MaxSharedBytes(const DeviceInfo& device) { return device.shared_bytes_per_block - 1024; }
int SharedBytesForTwo(const DeviceInfo& device) {
  return device.shared_bytes_per_sm / 2 - 6 * 1024;
}

}  // namespace

void RunWide(const LaunchContext& context, const LinearCall& call, const WidePlan& plan) {
  const DeviceInfo& device = context.Device();
  const int max_shared_bytes = MaxSharedBytes(device);
  CHECK_GE(plan.row_parts, 1);
  CHECK(call.rows >= 1 && call.rows <= kMaxWideRows * plan.row_parts) << call.rows;
  CHECK(plan.tile_rows % 64 == 0 && plan.tile_rows >= 64 && plan.tile_rows <= 192);
  CHECK(plan.split >= 1 && plan.split <= 8) << plan.split;
  CHECK(plan.split == 1 || !plan.persistent);
  if (call.residual != nullptr) {
    CHECK(call.x != nullptr) << "the residual update of " << call.rows << " rows needs scratch";
    RunResidualUpdate(context, *call.residual, call.rows, call.in_dim(), call.x);
  }

  const bool gated = call.epilogue == Epilogue::kGatedGelu;
  const int columns = WideColumns((call.rows + plan.row_parts - 1) / plan.row_parts);
  const int half = plan.tile_rows / 2;
  WideParams params{};
  params.output = MakeLinearOutput(call);
  params.rows = call.rows;
  params.num_tiles = NumWideTiles(call, plan.tile_rows);
  params.second_half = gated ? call.out_dim() / 2 : half;
  params.tile_step = gated ? half : plan.tile_rows;
  params.num_k_blocks = NumWideKBlocks(call.in_dim());
  params.split = plan.split;
  params.row_parts = (call.rows + columns - 1) / columns;
  params.vectorised =
      params.output.width % 8 == 0 &&
      (call.epilogue != Epilogue::kGeluMul ||
       (call.multiplier_stride % 8 == 0 && reinterpret_cast<uintptr_t>(call.multiplier) % 16 == 0));
  CHECK_LE(plan.split, params.num_k_blocks);

  const int stage_bytes = WideStageBytes(plan.tile_rows, columns);
  const int staging_bytes = WideStagingBytes(plan.tile_rows, columns);
  const bool alone = plan.alone || plan.persistent || WideBlocksPerSm(plan.tile_rows) == 1;
  const int room = (alone ? max_shared_bytes : SharedBytesForTwo(device)) - kAlignmentBytes -
                   (plan.persistent ? staging_bytes : 0);
  params.stages = std::min(kMaxStages, room / stage_bytes);
  if (!plan.persistent) {
    params.stages = std::min(params.stages, (params.num_k_blocks + plan.split - 1) / plan.split);
  }
  params.staging = plan.persistent ? params.stages * stage_bytes : 0;
  // What blocks of a split send: their rows, rounded up for each.
  const int received_bytes =
      plan.split > 1 ? staging_bytes / columns * (columns + plan.split - 1) : 0;
  int shared_bytes =
      std::max(params.stages * stage_bytes, params.staging + staging_bytes + received_bytes) +
      kAlignmentBytes;
  // A ring that leaves no room for a second block keeps blocks apart.
  if (alone) shared_bytes = std::max(shared_bytes, max_shared_bytes / 2 + 1024);
  CHECK_LE(shared_bytes, max_shared_bytes);
  const int num_clusters =
      plan.persistent ? std::min(params.num_tiles, device.num_sms) : params.num_tiles;

  const CUtensorMap weight_map =
      MakeSwizzledMap(Bf16Values(call.weight), call.out_dim(), call.in_dim(), half);
  const CUtensorMap x_map = MakeSwizzledMap(call.x, call.rows, call.in_dim(), columns);
  LaunchClusters(context, KernelFor(plan.tile_rows, columns), plan.split,
                 dim3(num_clusters * plan.split * params.row_parts),
                 dim3(WideThreads(plan.tile_rows)), shared_bytes, weight_map, x_map, params);
}

}  // namespace lapidary::cuda
