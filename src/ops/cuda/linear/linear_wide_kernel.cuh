// The kernel of linear_wide.h, as a template over how the weights are stored.
//
// A stage of the ring holds some columns of a tile's weights and of x. With weights in bf16, both
// operands of wgmma lie in shared memory. With quantised weights (weight_fragments.cuh) the stage
// holds codes and scales as they are in memory; a warp turns its share into bf16 in registers,
// which are wgmma's first operand. A weight is then bf16(scale * code), as if it had been
// dequantised in memory: both ways give the same bits.
#pragma once

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "ops/cuda/linear/linear_wide.h"
#include "ops/cuda/linear/linear_wide_finish.cuh"
#include "ops/cuda/linear/linear_wide_tiles.h"
#include "ops/cuda/linear/weight_fragments.cuh"
#include "ops/cuda/ptx/wgmma.cuh"

namespace lapidary::cuda {

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

// The producer's position in its stream of copies, over all tiles of this block. A stage has
// kBlocks blocks of k; what the last one of a tile has beyond k_end is not multiplied.
template <int kBlocks>
struct CopyPosition {
  int tile;
  int k;
  RingPosition ring;

  __device__ __forceinline__ void Advance(const WideWork& work, int num_stages) {
    ring.Advance(num_stages);
    k += kBlocks;
    if (k >= work.k_end) {
      k = work.k_begin;
      tile += work.tiles_at_once;
    }
  }
};

// Copies into the ring, by one thread.
template <TileType kType, int kTileRows, int kColumns>
class WideProducer {
 public:
  __device__ __forceinline__ WideProducer(const CUtensorMap& weight_map, const CUtensorMap& x_map,
                                          const WideParams& p, const WideRing& ring,
                                          const WideWork& work)
      : weight_map_(weight_map), x_map_(x_map), p_(p), ring_(ring), work_(work) {}

  // Before the kernel before is done: barriers, and the weights of as many stages as there are.
  __device__ __forceinline__ void Start() {
    PrefetchMap(weight_map_);
    PrefetchMap(x_map_);
    for (int stage = 0; stage < p_.stages; ++stage) {
      InitBarrier(ring_.full + 8 * stage, 1);
      InitBarrier(ring_.empty + 8 * stage, WideConsumerWarps(kTileRows));
    }
    InitBarrier(ring_.exchanged, 1);
    PublishBarriers();
    Position at{work_.first_tile, work_.k_begin, {}};
    for (; ahead_ < p_.stages && at.tile < p_.num_tiles; ++ahead_) {
      CopyWeight(at);
      at.Advance(work_, p_.stages);
    }
    ExpectBytes(ring_.exchanged, p_.split * work_.NumOwnRows(work_.rank) * WideRowBytes(kTileRows));
  }

  // After it: x of the stages that have their weights, then stage by stage as they become free.
  __device__ __forceinline__ void Run() {
    Position at{work_.first_tile, work_.k_begin, {}};
    for (; ahead_ > 0; --ahead_) {
      CopyX(at);
      at.Advance(work_, p_.stages);
    }
    while (at.tile < p_.num_tiles) {
      AwaitBarrier(ring_.empty + 8 * at.ring.slot, at.ring.parity ^ 1);
      CopyWeight(at);
      CopyX(at);
      at.Advance(work_, p_.stages);
    }
  }

 private:
  static constexpr int kStageBytes = WideStageBytes(kType, kTileRows, kColumns);
  static constexpr int kInputBytes = WideInputBytes(kType, kColumns);
  using Position = CopyPosition<WideStageBlocks(kType)>;

  __device__ __forceinline__ uint32_t Barrier(const Position& at) const {
    return ring_.full + 8 * at.ring.slot;
  }
  __device__ __forceinline__ uint32_t Stage(const Position& at) const {
    return ring_.stages + at.ring.slot * kStageBytes;
  }

  // Both halves of a tile's weight rows (with kGatedGelu gate and up rows); the stage's barrier
  // expects its x as well.
  __device__ __forceinline__ void CopyWeight(const Position& at) const {
    // The maps' rows and columns: of bf16 weights and values, of others stripes and words.
    constexpr bool kTiled = IsTiled(kType);
    constexpr int kRowsOfRow = kTiled ? lapidary::kTileRows : 1;
    constexpr int kColumnsOfBlock = kTiled ? TileUnitBytes(kType) / 8 : kSwizzledRowValues;
    const BoxUse use = p_.row_parts > 1 ? BoxUse::kNormal : BoxUse::kOnce;
    const uint32_t target = Stage(at) + kInputBytes;
    const int row = at.tile * p_.tile_step;
    ExpectBytes(Barrier(at), kStageBytes);
    CopyBox(weight_map_, row / kRowsOfRow, at.k * kColumnsOfBlock, target, Barrier(at), use);
    CopyBox(weight_map_, (row + p_.second_half) / kRowsOfRow, at.k * kColumnsOfBlock,
            target + WideWeightBytes(kType, kTileRows) / 2, Barrier(at), use);
  }

  __device__ __forceinline__ void CopyX(const Position& at) const {
    if constexpr (WideStageBlocks(kType) == 1) {
      CopyBox(x_map_, work_.first_row, at.k * kSwizzledRowValues, Stage(at), Barrier(at),
              BoxUse::kAgain);
    } else {
      CopyChunks(x_map_, work_.first_row, at.k, Stage(at), Barrier(at), BoxUse::kAgain);
    }
  }

  const CUtensorMap& weight_map_;
  const CUtensorMap& x_map_;
  const WideParams& p_;
  const WideRing& ring_;
  const WideWork& work_;
  int ahead_ = 0;
};

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

// acc += a warp's 16 rows of a block of k times x, 8 rows of x at a time; scales enter in f32,
// after the products of their columns. `low`: the unit of the first 8 rows; `x`: the block's rows
// of 128 bytes, swizzled.
template <TileType kType, int kColumns>
__device__ __forceinline__ void MultiplyUnit(uint32_t low, uint32_t x, int lane,
                                             float (&acc)[kColumns / 2]) {
  using Tile = WeightTile<kType>;
  typename Tile::Stage stage;
  Tile::LoadShared(stage, low + Tile::CodesOfLane(lane), low + Tile::ScalesOfLane(lane),
                   WideStripeBytes(kType));
  const int g = lane / 4;
  const int t = lane % 4;
  const auto multiply = [&](auto chunk) {
    constexpr int kChunk = decltype(chunk)::value;
    uint32_t operands[2][4];
    Tile::template MakeOperands<kChunk>(stage, operands);
    const uint32_t x_lane = x + g * kSwizzledRowBytes + (((4 * kChunk + t) ^ g) * 16);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const uint4 values = LoadShared(x_lane + j * 8 * kSwizzledRowBytes);
      float sums[4] = {};
      Mma(sums, operands[0], values.x, values.y);
      Mma(sums, operands[1], values.z, values.w);
      Tile::template AddScaled<kChunk>(acc + 4 * j, sums, stage.low_scales, stage.high_scales);
    }
  };
  multiply(std::integral_constant<int, 0>());
  multiply(std::integral_constant<int, 1>());
}

// Where a warp reads a stage of the ring.
template <TileType kType, int kTileRows, int kColumns>
struct StageReader {
  static constexpr int kInputBytes = WideInputBytes(kType, kColumns);

  const WideRing& ring;
  const WarpPart<kTileRows, kColumns>& part;

  __device__ __forceinline__ void Await(const RingPosition& at) const {
    AwaitBarrier(ring.full + 8 * at.slot, at.parity);
  }
  __device__ __forceinline__ void Release(int slot) const {
    if (part.lane == 0) ArriveAtBarrier(ring.empty + 8 * slot);
  }
  __device__ __forceinline__ uint32_t Stage(int slot) const {
    return ring.stages + slot * WideStageBytes(kType, kTileRows, kColumns);
  }
  // The warpgroup's rows of x, of a block of k of the stage.
  __device__ __forceinline__ uint32_t Input(int slot, int block) const {
    return Stage(slot) + part.first_column * kSwizzledRowBytes +
           block * (kInputBytes / WideStageBlocks(kType));
  }
  // The warp's unit of its first eight weight rows, with quantised weights.
  __device__ __forceinline__ uint32_t Unit(int slot, int block) const {
    const int stripe = part.first_weight_row / lapidary::kTileRows + 2 * (part.warp % 4);
    return Stage(slot) + kInputBytes + stripe * WideStripeBytes(kType) +
           block * TileUnitBytes(kType);
  }
};

// The products of a tile in bf16, of the block's part of k.
template <int kTileRows, int kColumns>
__device__ __forceinline__ void MultiplyTile(
    const StageReader<TileType::kBf16, kTileRows, kColumns>& reader, int k_begin, int k_end,
    int num_stages, RingPosition& at, typename WarpPart<kTileRows, kColumns>::Sums& acc) {
  constexpr int kGroupColumns = WarpPart<kTileRows, kColumns>::kGroupColumns;
  int last_slot = -1;
  for (int k = k_begin; k < k_end; ++k) {
    reader.Await(at);
    const uint64_t a = SwizzledOperand(reader.Stage(at.slot) + reader.kInputBytes +
                                       reader.part.first_weight_row * kSwizzledRowBytes);
    const uint64_t b = SwizzledOperand(reader.Input(at.slot, 0));
    WgmmaBegin();
#pragma unroll
    for (int step = 0; step < kSwizzledRowValues / 16; ++step) {
      Wgmma<kGroupColumns>::Run(acc, a + 2 * step, b + 2 * step);
    }
    WgmmaCommit();
    WgmmaWait<1>();
    // All but the newest products are done, so the slot before is free.
    if (last_slot >= 0) reader.Release(last_slot);
    last_slot = at.slot;
    at.Advance(num_stages);
  }
  WgmmaWait<0>();
  reader.Release(last_slot);
}

// The same of quantised weights that are scaled in f32.
template <TileType kType, int kTileRows, int kColumns>
__device__ __forceinline__ void MultiplyTileScaledLast(
    const StageReader<kType, kTileRows, kColumns>& reader, int k_begin, int k_end, int num_stages,
    RingPosition& at, typename WarpPart<kTileRows, kColumns>::Sums& acc) {
  constexpr int kBlocks = WideStageBlocks(kType);
  for (int k = k_begin; k < k_end; k += kBlocks) {
    reader.Await(at);
    const int num_blocks = min(kBlocks, k_end - k);
#pragma unroll 1
    for (int block = 0; block < num_blocks; ++block) {
      MultiplyUnit<kType, kColumns>(reader.Unit(at.slot, block), reader.Input(at.slot, block),
                                    reader.part.lane, acc);
    }
    __syncwarp();
    reader.Release(at.slot);
    at.Advance(num_stages);
  }
}

// Starts the products of a warpgroup's 64 weight rows and 64 columns of k with kColumns rows of x.
template <int kColumns>
__device__ __forceinline__ void MultiplyFragments(const WeightFragments& fragments, uint32_t x,
                                                  float (&acc)[kColumns / 2]) {
  const uint64_t b = SwizzledOperand(x);
  WgmmaBegin();
#pragma unroll
  for (int step = 0; step < kSwizzledRowValues / 16; ++step) {
    WgmmaOfWeights<kColumns>::Run(acc, fragments[step], b + 2 * step);
  }
  WgmmaCommit();
}

// The same of quantised weights that are rounded to bf16. The operands of a block of k are made
// while the products of the block before it run: the compiler puts the instructions for the former
// between those of the latter where nothing stands in the way, so the wait for the next stage comes
// before both. What the last stage has beyond k_end is multiplied by 0.
template <TileType kType, int kTileRows, int kColumns>
__device__ __forceinline__ void MultiplyTileRounded(
    const StageReader<kType, kTileRows, kColumns>& reader, int k_begin, int k_end, int num_stages,
    RingPosition& at, typename WarpPart<kTileRows, kColumns>::Sums& acc) {
  constexpr int kGroupColumns = WarpPart<kTileRows, kColumns>::kGroupColumns;
  static_assert(WideStageBlocks(kType) == 2);
  if constexpr (kTileRows == kTallWideRows) {
    // Four warpgroups: while one waits for its products, the others make operands.
    for (int k = k_begin; k < k_end; k += 2) {
      reader.Await(at);
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        WeightFragments fragments;
        const uint32_t unit = reader.Unit(at.slot, block);
        LoadFragments<kType>(unit, unit + WideStripeBytes(kType), reader.part.lane,
                             k + block >= k_end, fragments);
        MultiplyFragments<kGroupColumns>(fragments, reader.Input(at.slot, block), acc);
        WgmmaWait<0>();
      }
      reader.Release(at.slot);
      at.Advance(num_stages);
    }
    return;
  }
  WeightFragments first, second;
  const auto load = [&](int block, bool is_zero, WeightFragments& fragments) {
    const uint32_t unit = reader.Unit(at.slot, block);
    LoadFragments<kType>(unit, unit + WideStripeBytes(kType), reader.part.lane, is_zero, fragments);
  };
  reader.Await(at);
  load(0, false, first);
  for (int k = k_begin;;) {
    MultiplyFragments<kGroupColumns>(first, reader.Input(at.slot, 0), acc);
    load(1, k + 1 >= k_end, second);
    WgmmaWait<0>();
    k += 2;
    if (k >= k_end) break;
    const int last_slot = at.slot;
    at.Advance(num_stages);
    reader.Await(at);
    MultiplyFragments<kGroupColumns>(second, reader.Input(last_slot, 1), acc);
    load(0, false, first);
    WgmmaWait<0>();
    reader.Release(last_slot);
  }
  MultiplyFragments<kGroupColumns>(second, reader.Input(at.slot, 1), acc);
  WgmmaWait<0>();
  reader.Release(at.slot);
  at.Advance(num_stages);
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

// Shared memory: a ring of stages (x [kColumns][64] for each block of k, then the weights), and the
// sums as f32 [kColumns][kTileRows + kWidePadding], in the ring's place where a block has but one
// tile. With a split, what its blocks send follows: f32 [split][rows that this block finishes][the
// same].
template <TileType kType, int kTileRows, int kColumns, bool kScalesLast = false>
__global__ void __launch_bounds__(WideThreads(kTileRows),
                                  WideBlocksPerSm(kType, kTileRows, kColumns))
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
  WideProducer<kType, kTileRows, kColumns> producer(weight_map, x_map, p, ring, work);
  if (is_producer) producer.Start();
  __syncthreads();
  WaitForPreviousKernel();

  if (warp == kConsumerWarps) {
    if (is_producer) producer.Run();
    __syncwarp();
    if (p.split > 1) {
      TellCluster();
      AwaitCluster();
      TellCluster();
    }
  } else {
    const WarpPart<kTileRows, kColumns> part(warp, threadIdx.x % 32);
    const StageReader<kType, kTileRows, kColumns> reader{ring, part};
    const uint32_t staging = ring.stages + p.staging;
    float* const staged =
        reinterpret_cast<float*>(dynamic_shared + (staging - SharedAddress(dynamic_shared)));
    RingPosition at;
    for (int tile = work.first_tile; tile < p.num_tiles; tile += work.tiles_at_once) {
      typename WarpPart<kTileRows, kColumns>::Sums acc;
#pragma unroll
      for (float& value : acc) value = 0.0f;
      if constexpr (kType == TileType::kBf16) {
        MultiplyTile(reader, work.k_begin, work.k_end, p.stages, at, acc);
      } else if constexpr (kScalesLast) {
        MultiplyTileScaledLast(reader, work.k_begin, work.k_end, p.stages, at, acc);
      } else {
        MultiplyTileRounded(reader, work.k_begin, work.k_end, p.stages, at, acc);
      }
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

// The kernel for weights of a type, which the type's own small file compiles. `columns`: as
// WideColumns gives them.
template <TileType kType>
WideKernelPointer WideKernelFor(int tile_rows, int columns, bool scales_last);

// Of quantised weights.
template <TileType kType>
WideKernelPointer TallWideKernelFor(int columns) {
  switch (columns) {
    case 32:
      return WideKernel<kType, kTallWideRows, 32>;
    case 48:
      return WideKernel<kType, kTallWideRows, 48>;
    default:
      CHECK_EQ(columns, 64);
      return WideKernel<kType, kTallWideRows, 64>;
  }
}
template <TileType kType>
WideKernelPointer TiledWideKernelFor(int tile_rows, int columns, bool scales_last) {
  if (tile_rows == kTallWideRows) {
    CHECK(!scales_last);
    return TallWideKernelFor<kType>(columns);
  }
  CHECK_EQ(tile_rows, kTiledWideRows);
  constexpr int kRows = kTiledWideRows;
  switch (columns) {
    case 16:
      return scales_last ? WideKernel<kType, kRows, 16, true> : WideKernel<kType, kRows, 16>;
    case 32:
      CHECK(!scales_last);
      return WideKernel<kType, kRows, 32>;
    case 48:
      CHECK(!scales_last);
      return WideKernel<kType, kRows, 48>;
    case 64:
      CHECK(!scales_last);
      return WideKernel<kType, kRows, 64>;
    case 96:
      CHECK(!scales_last);
      return WideKernel<kType, kRows, 96>;
    default:
      CHECK(!scales_last);
      CHECK_EQ(columns, 128);
      return WideKernel<kType, kRows, 128>;
  }
}

}  // namespace lapidary::cuda
