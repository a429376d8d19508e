// The kernel of linear_large.h; a file for each tile height makes its instances.
#pragma once

#include "base/check.h"
#include "ops/cuda/linear/linear_large_tiles.h"
#include "ops/cuda/linear/linear_store.cuh"
#include "ops/cuda/staged_results.cuh"

namespace lapidary::cuda {

static_assert(kLargeStagingBytes == kStagedBytes);

struct LargeParams {
  LinearOutput output;
  int rows;
  int num_parts;     // of the rows of x, each the columns of a tile
  int num_tiles;     // in all: those that share a weight's rows lie beside each other
  int num_k_blocks;  // of 64 values
  int split;
};

using LargeKernelPointer = void (*)(CUtensorMap, CUtensorMap, LargeParams);
LargeKernelPointer LargeKernelOf128(int columns, bool gated);
LargeKernelPointer LargeKernelOf256(int columns, bool gated);

// What a block computes: every step-th tile, of its part [k_begin, k_end) of the sum.
struct LargeWork {
  int rank;  // in the split
  int first_tile;
  int step;
  int k_begin;
  int k_end;

  __device__ __forceinline__ explicit LargeWork(const LargeParams& p)
      : rank(blockIdx.x % p.split),
        first_tile(blockIdx.x / p.split),
        step(gridDim.x / p.split),
        k_begin(rank * p.num_k_blocks / p.split),
        k_end((rank + 1) * p.num_k_blocks / p.split) {}
};

// Shared memory addresses: stages, barriers, results on their way out.
struct LargeRing {
  uint32_t stages;
  uint32_t full;
  uint32_t empty;
  uint32_t staging;
};

// ---- loading -----------------------------------------------------------------------------------

// One thread loads the weights of all tiles, another their rows of x: with few registers, since
// those that multiply want them. A stage's barrier expects both from the first.
template <int kBoxes, int kColumns, bool kGated>
class LargeLoader {
 public:
  __device__ __forceinline__ LargeLoader(const CUtensorMap& map, const LargeRing& ring)
      : map_(map), stages_(ring.stages), barriers_(ring.full) {}

  // Begins before the kernel before is done: weights are not its results.
  __device__ __forceinline__ void LoadWeights(const LargeParams& p, const LargeWork& work) {
    constexpr int kRowBlocks = kLargeBoxRows / 8 / (kGated ? 2 : 1);  // of a box
#pragma unroll 1
    for (int tile = work.first_tile; tile < p.num_tiles; tile += work.step) {
      const int row_block = tile / p.num_parts * kBoxes * kRowBlocks;
#pragma unroll 1
      for (int k = work.k_begin; k < work.k_end; ++k) {
        AwaitSlot();
        const uint32_t barrier = barriers_ + 8 * at_.slot;
        ExpectBytes(barrier, kStageBytes);
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
          CopyExpertRows(map_, 0, row_block + box * kRowBlocks, k * kLargeKBlock,
                         stages_ + at_.slot * kStageBytes + box * kBoxBytes, barrier,
                         BoxUse::kNormal);
        }
        at_.Advance(kStages);
      }
    }
  }

  __device__ __forceinline__ void LoadX(const LargeParams& p, const LargeWork& work) {
#pragma unroll 1
    for (int tile = work.first_tile; tile < p.num_tiles; tile += work.step) {
      const int row = tile % p.num_parts * kColumns;
#pragma unroll 1
      for (int k = work.k_begin; k < work.k_end; ++k) {
        AwaitSlot();
        CopyBox(map_, row, k * kLargeKBlock, stages_ + at_.slot * kStageBytes + kBoxes * kBoxBytes,
                barriers_ + 8 * at_.slot, BoxUse::kAgain);
        at_.Advance(kStages);
      }
    }
  }

 private:
  static constexpr int kStages = LargeStages(kBoxes, kColumns);
  static constexpr int kStageBytes = LargeStageBytes(kBoxes, kColumns);
  static constexpr int kBoxBytes = kLargeBoxRows * kSwizzledRowBytes;

  __device__ __forceinline__ void AwaitSlot() const {
    AwaitBarrier(barriers_ + 8 * (kStages + at_.slot), at_.parity ^ 1);
  }

  const CUtensorMap& map_;
  const uint32_t stages_;
  const uint32_t barriers_;  // full, then empty ones
  RingPosition at_;
};

// ---- multiplying -------------------------------------------------------------------------------

// A warpgroup has 64 weight rows of each box.
template <int kBoxes, int kColumns, bool kGated>
class LargeMultiplier {
 public:
  __device__ __forceinline__ LargeMultiplier(const LargeParams& p, const LargeRing& ring,
                                             const LargeWork& work)
      : p_(p),
        ring_(ring),
        work_(work),
        warpgroup_(threadIdx.x / kWarpgroupThreads),
        thread_(threadIdx.x % kWarpgroupThreads),
        warp_(thread_ / 32),
        lane_(thread_ % 32),
        staging_(ring.staging + warpgroup_ * kStagedBytes) {}

  __device__ __forceinline__ void Run() {
    for (int tile = work_.first_tile; tile < p_.num_tiles; tile += work_.step) {
      Sums acc[kBoxes];
      Multiply(acc);
      int first_group = 0;
      int end_group = kGroups;
      if (p_.split > 1) {
        first_group = LargeFirstGroup(kGroups, p_.split, work_.rank);
        end_group = LargeFirstGroup(kGroups, p_.split, work_.rank + 1);
        Exchange(acc);
      }
      const int first_row = tile % p_.num_parts * kColumns;
      const RowRange rows = {8 * first_group, min(8 * end_group, p_.rows - first_row)};
      const int first_feature = tile / p_.num_parts * kBoxes * kBoxFeatures;
      StoreRows(acc, first_row, rows, first_feature);
    }
  }

 private:
  static constexpr int kStages = LargeStages(kBoxes, kColumns);
  static constexpr int kStageBytes = LargeStageBytes(kBoxes, kColumns);
  static constexpr int kBoxBytes = kLargeBoxRows * kSwizzledRowBytes;
  static constexpr int kGroups = kColumns / 8;
  static constexpr int kBoxFeatures = kLargeBoxRows / (kGated ? 2 : 1);
  using Staged = StagedResults<kGated>;
  static constexpr int kFeatures = Staged::kFeatures;  // of a warpgroup
  static constexpr int kVectors = Staged::kVectors;
  using Sums = float[kColumns / 2];

  // Of a tile's columns.
  struct RowRange {
    int begin;
    int end;
  };

  __device__ __forceinline__ void Multiply(Sums (&acc)[kBoxes]) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
      for (float& value : acc[box]) value = 0.0f;
    }
    int last_slot = -1;
    for (int k = work_.k_begin; k < work_.k_end; ++k) {
      AwaitBarrier(ring_.full + 8 * at_.slot, at_.parity);
      const uint32_t stage = ring_.stages + at_.slot * kStageBytes;
      const uint64_t a = SwizzledOperand(stage + warpgroup_ * kWarpgroupRows * kSwizzledRowBytes);
      const uint64_t b = SwizzledOperand(stage + kBoxes * kBoxBytes);
      WgmmaBegin();
#pragma unroll
      for (int step = 0; step < kLargeKBlock / 16; ++step) {
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
          Wgmma<kColumns>::Run(acc[box], a + 2 * step + box * (kBoxBytes / 16), b + 2 * step);
        }
      }
      WgmmaCommit();
      // All but the newest are done, so the slot before is free.
      WgmmaWait<1>();
      if (last_slot >= 0 && lane_ == 0) ArriveAtBarrier(ring_.empty + 8 * last_slot);
      last_slot = at_.slot;
      at_.Advance(kStages);
    }
    WgmmaWait<0>();
    if (lane_ == 0) ArriveAtBarrier(ring_.empty + 8 * last_slot);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) WgmmaKeep(acc[box]);
  }

  // Sends every other block of the split the sums of the columns it finishes, thread to thread, and
  // adds to its own what the others send.
  __device__ __forceinline__ void Exchange(Sums (&acc)[kBoxes]) const {
    constexpr int kGroupBytes = kBoxes * kLargeConsumers * 16;
    SyncCluster();  // nobody's stages are in use
    // [other blocks][groups][boxes][threads], 16 bytes each
    const uint32_t received = ring_.stages + threadIdx.x * 16;
    const int source_bytes = (kGroups + p_.split - 1) / p_.split * kGroupBytes;
#pragma unroll 1
    for (int target = 0; target < p_.split; ++target) {
      if (target == work_.rank) continue;
      const int first = LargeFirstGroup(kGroups, p_.split, target);
      const int end = LargeFirstGroup(kGroups, p_.split, target + 1);
      const uint32_t to =
          AddressInBlock(received + (work_.rank - (work_.rank > target)) * source_bytes, target);
      const uint32_t of_group_0 = to - first * kGroupBytes;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (group < first || group >= end) continue;
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
          const float* const sums = acc[box] + 4 * group;
          asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                           of_group_0 + group * kGroupBytes + box * (kLargeConsumers * 16)),
                       "f"(sums[0]), "f"(sums[1]), "f"(sums[2]), "f"(sums[3])
                       : "memory");
        }
      }
    }
    SyncCluster();
    const int first = LargeFirstGroup(kGroups, p_.split, work_.rank);
    const int end = LargeFirstGroup(kGroups, p_.split, work_.rank + 1);
#pragma unroll 1
    for (int source = 0; source < p_.split - 1; ++source) {
      const uint32_t of_group_0 = received + source * source_bytes - first * kGroupBytes;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (group < first || group >= end) continue;
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
          float* const sums = acc[box] + 4 * group;
          const uint4 words =
              LoadShared(of_group_0 + group * kGroupBytes + box * (kLargeConsumers * 16));
          sums[0] += __uint_as_float(words.x);
          sums[1] += __uint_as_float(words.y);
          sums[2] += __uint_as_float(words.z);
          sums[3] += __uint_as_float(words.w);
        }
      }
    }
  }

  // Through shared memory, some rows of x at a time.
  __device__ __forceinline__ void StoreRows(const Sums (&acc)[kBoxes], int first_row,
                                            const RowRange& rows, int first_feature) const {
#pragma unroll
    for (int first = 0; first < kColumns; first += kStagedRows) {
      if (first + kStagedRows <= rows.begin || first >= rows.end) continue;
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        SyncWarpgroup();  // the staging is free
        Staged::template Stage<kColumns>(staging_, warp_, lane_, acc[box], first);
        SyncWarpgroup();
        StoreStaged(first_row + first,
                    {max(rows.begin - first, 0), min(rows.end - first, kStagedRows)},
                    first_feature + box * kBoxFeatures + warpgroup_ * kFeatures);
      }
    }
  }

  __device__ __forceinline__ void SyncWarpgroup() const {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + warpgroup_), "n"(kWarpgroupThreads) : "memory");
  }

  __device__ __forceinline__ void StoreStaged(int first_row, const RowRange& rows,
                                              int first_feature) const {
    constexpr int kRowsApart = kWarpgroupThreads / kVectors;
    const LinearOutput& output = p_.output;
    const int vector = thread_ % kVectors;
    const int feature = first_feature + 8 * vector;
    if (feature >= output.width) return;
    auto* const y = static_cast<bf16*>(output.y);
#pragma unroll
    for (int row = thread_ / kVectors; row < kStagedRows; row += kRowsApart) {
      if (row < rows.begin || row >= rows.end) continue;
      uint4 words = LoadShared(staging_ + Staged::VectorOffset(row, vector));
      if (!kGated && output.epilogue == Epilogue::kGeluMul) {
        const uint4 factors = __ldcg(reinterpret_cast<const uint4*>(
            output.multiplier + (first_row + row) * output.multiplier_stride + feature));
        words = {GeluTimes(words.x, factors.x), GeluTimes(words.y, factors.y),
                 GeluTimes(words.z, factors.z), GeluTimes(words.w, factors.w)};
      }
      *reinterpret_cast<uint4*>(y + int64_t{first_row + row} * output.width + feature) = words;
    }
  }

  // Two bf16 values: gelu(x) * factor.
  __device__ __forceinline__ static uint32_t GeluTimes(uint32_t x, uint32_t factor) {
    const auto low = [](uint32_t pair) { return __uint_as_float(pair << 16); };
    const auto high = [](uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); };
    return PackBf16x2(GeluTanh(low(x)) * low(factor), GeluTanh(high(x)) * high(factor));
  }

  const LargeParams& p_;
  const LargeRing& ring_;
  const LargeWork& work_;
  const int warpgroup_;
  const int thread_;
  const int warp_;
  const int lane_;
  const uint32_t staging_;
  RingPosition at_;
};

// Shared memory: a ring of stages (weight [kBoxes * 128][64], x [kColumns][64], both swizzled), and
// for each warpgroup results on their way out. Registers go to those that multiply: of what a block
// of so many threads can have, all but 24 for each thread that loads.
template <int kBoxes, int kColumns, bool kGated>
__global__ void __launch_bounds__(kLargeThreads, 1)
    LargeKernel(const __grid_constant__ CUtensorMap weight_map,
                const __grid_constant__ CUtensorMap x_map, const __grid_constant__ LargeParams p) {
  constexpr int kStages = LargeStages(kBoxes, kColumns);
  static_assert(kStages >= 3);
  extern __shared__ unsigned char dynamic_shared[];
  __shared__ uint64_t barriers[2 * kStages];
  AllowNextKernel();
  const uint32_t stages = (SharedAddress(dynamic_shared) + 1023) & ~1023u;
  const LargeRing ring = {.stages = stages,
                          .full = SharedAddress(barriers),
                          .empty = SharedAddress(barriers) + 8 * kStages,
                          .staging = stages + kStages * LargeStageBytes(kBoxes, kColumns)};
  const LargeWork work(p);
  if (threadIdx.x == kLargeConsumers) {
    PrefetchMap(weight_map);
    PrefetchMap(x_map);
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(ring.full + 8 * stage, 1);
      InitBarrier(ring.empty + 8 * stage, kLargeConsumers / 32);
    }
    PublishBarriers();
  }
  __syncthreads();
  if (threadIdx.x >= kLargeConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == kLargeConsumers) {
      LargeLoader<kBoxes, kColumns, kGated>(weight_map, ring).LoadWeights(p, work);
    } else if (threadIdx.x == kLargeConsumers + 32) {
      WaitForPreviousKernel();
      LargeLoader<kBoxes, kColumns, kGated>(x_map, ring).LoadX(p, work);
    }
    __syncwarp();
    if (p.split > 1) {
      SyncCluster();
      SyncCluster();
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    WaitForPreviousKernel();
    LargeMultiplier<kBoxes, kColumns, kGated>(p, ring, work).Run();
  }
}

template <int kBoxes, bool kGated>
LargeKernelPointer LargeKernelFor(int columns) {
  switch (columns) {
    case 112:
      return LargeKernel<kBoxes, 112, kGated>;
    case 128:
      return LargeKernel<kBoxes, 128, kGated>;
    case 144:
      return LargeKernel<kBoxes, 144, kGated>;
    case 160:
      return LargeKernel<kBoxes, 160, kGated>;
    case 176:
      return LargeKernel<kBoxes, 176, kGated>;
    case 192:
      return LargeKernel<kBoxes, 192, kGated>;
    default:
      CHECK_EQ(columns, 208);
      return LargeKernel<kBoxes, 208, kGated>;
  }
}

}  // namespace lapidary::cuda
