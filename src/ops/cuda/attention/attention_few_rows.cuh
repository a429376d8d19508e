// How a block of the kernel for few rows (attention_few_rows.cu) shares its work and its memory.
#pragma once

#include <cstdint>

#include "ops/cuda/attention/attention_hopper.cuh"
#include "ops/cuda/attention/attention_hopper.h"

namespace lapidary::cuda::few_rows {

inline constexpr int kKeys = 16;  // of a tile
inline constexpr int kWarpRows = 8;
inline constexpr int kComputingWarps = 8;
inline constexpr int kComputing = kComputingWarps * 32;
inline constexpr int kLoadingWarps = 4;
inline constexpr int kThreads = kComputing + kLoadingWarps * 32;
inline constexpr int kMaxParts = kFewRows / kWarpRows;  // of an item, 8 rows each
static_assert(kMaxParts == 4);

// The item in work as the computing warps see it; in shared memory, to spare registers.
struct FewRowsTask {
  HopperItem work;
  int32_t num_rows;
  uint32_t first_tile;  // in the count of all items
  uint32_t end_tile;
  int32_t key_of_tile_0;    // as if that were of this item
  VisibleKeys seen_by_all;  // rows
  int32_t is_last_split;
};

// Places in shared memory.
template <typename FormValue>
struct Plan {
  using Form = FormValue;
  // 16 bytes from entry to entry: the pieces of eight entries lie in different banks.
  static constexpr int kEntryBytes = Form::kEntryLen * 2;
  static constexpr int kEntryStride = kEntryBytes + 16;
  static constexpr int kStageBytes = kKeys * kEntryStride;

  static constexpr int kTaskAt = 256;    // behind the barriers
  static constexpr int kMaximaAt = 384;  // f32 [warps][8 rows], then the sums of P
  static constexpr int kTotalsAt = kMaximaAt + 2 * kComputingWarps * kWarpRows * 4;
  static constexpr int kJoinAt = 1280;  // behind f32 [32 rows] maxima and sums of P
  static_assert(kTaskAt + sizeof(FewRowsTask) <= kMaximaAt);
  static_assert(kTotalsAt + 2 * kFewRows * 4 <= kJoinAt);
  // Sums of all warps, so many columns at a time: f32 [warps][8 rows][columns and 4]. With these 4
  // the lanes of a warp store to different banks. Entries of K and V in one leave room for fewer.
  static constexpr int kJoinColumns = Form::kKeyIsValue ? 128 : 256;
  static constexpr int kJoinStride = kJoinColumns + 4;
  static constexpr int kJoinFloats = kWarpRows * kJoinStride;  // of a warp
  static constexpr int kStagesAt = kJoinAt + kComputingWarps * kJoinFloats * 4;
  // A power of two, so that within an item a stage is always for the same warps. Others could be a
  // whole turn of the ring ahead of it, and a barrier's parity does not tell turns n and n + 2
  // apart.
  static constexpr int kStages = kStagesAt + 8 * kStageBytes <= Form::kSharedBytes ? 8 : 4;
  static constexpr int kSharedBytes = kStagesAt + kStages * kStageBytes;
  static_assert(kSharedBytes <= Form::kSharedBytes && 2 * kStages * 8 <= kTaskAt);
  static_assert(kStagesAt % 128 == 0);

  // Tiles are counted over all items of a block: tile n is the (n / kStages)-th of its stage.
  static __device__ uint32_t StageAt(uint32_t shared, uint32_t tile) {
    return shared + kStagesAt + tile % kStages * kStageBytes;
  }
  static __device__ uint32_t HereAt(uint32_t shared, uint32_t tile) {
    return shared + tile % kStages * 8;
  }
  static __device__ uint32_t FreeAt(uint32_t shared, uint32_t tile) {
    return shared + (kStages + tile % kStages) * 8;
  }
  static __device__ uint32_t ParityOf(uint32_t tile) { return tile / kStages & 1; }
};

// How the computing warps share an item: parts of 8 rows, and groups that have every so many-th
// tile. Warps beyond the last group have nothing to do.
template <typename P>
struct Shares {
  int shift;  // parts are 1, 2 or 4: 1 << shift

  __device__ explicit Shares(int num_rows)
      : shift(num_rows <= kWarpRows       ? 0
              : num_rows <= 2 * kWarpRows ? 1
                                          : 2) {}
  __device__ int parts() const { return 1 << shift; }
  __device__ int groups() const { return min(kComputingWarps >> shift, P::kStages); }
  __device__ int warps() const { return groups() << shift; }
  __device__ int PartOf(int warp) const { return warp & (parts() - 1); }
  __device__ int GroupOf(int warp) const { return warp >> shift; }
};

__device__ __forceinline__ void SyncComputing() {
  asm volatile("bar.sync 1, %0;" ::"n"(kComputing) : "memory");
}

// Queries of a warp's rows as the second operand of scores: steps of 16 dims.
template <typename P>
using Queries = uint32_t[P::Form::kKeyLen / 16][2];
// Sums of P V in blocks of 16 columns: columns g (in 0, 1) and g + 8 of rows 2 t (in 0, 2) and
// 2 t + 1, where g = lane / 4 and t = lane % 4.
template <typename P>
using Sums = float[P::Form::kValueLen / 16][4];

}  // namespace lapidary::cuda::few_rows
