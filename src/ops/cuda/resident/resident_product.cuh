// The matrix products of a resident step: a ring of weight pieces in shared memory, filled by one
// warp and used by the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/ptx/tma.cuh"
#include "ops/cuda/ptx/warp_mma.cuh"
#include "ops/cuda/resident/resident_digit_tile.cuh"
#include "ops/cuda/resident/resident_digits.h"
#include "ops/cuda/resident/resident_exchange.cuh"
#include "ops/cuda/resident/resident_program.h"

namespace lapidary::cuda {

inline constexpr int kMaxSlots = 16;
inline constexpr int kMinSlots = 7;  // a round of attention has as many at most

__device__ __forceinline__ MatrixPart PartOfBlock(const ResidentMatrix& matrix) {
  return {matrix, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
}

// The computing warps are two teams that take the slots of the ring in turns.
inline constexpr int kTeams = kResidentWarps / kSlotWarps;

template <int kSlotBytes>
struct Ring {
  std::byte* slots;   // in shared memory
  uint32_t arrived;   // barriers [num_slots]: the producer thread, and the bytes it asked for
  uint32_t consumed;  // barriers [num_slots], kMaxSlots behind those: the computing warps
  int num_slots;

  __device__ std::byte* Slot(const RingPosition& at) const { return slots + at.slot * kSlotBytes; }
  __device__ uint32_t Arrived(const RingPosition& at) const { return arrived + at.slot * 8; }
  __device__ uint32_t Consumed(const RingPosition& at) const { return consumed + at.slot * 8; }
};

// Where a computing warp stands in the sequence of slots.
struct TeamPosition {
  RingPosition at;   // the team's next slot
  int has_turn = 1;  // the next slot of all is the team's; else the one behind it

  // The next slot of all.
  __device__ __forceinline__ RingPosition Next(int num_slots) const {
    RingPosition next = at;
    if (!has_turn) next.StepBack(num_slots);
    return next;
  }
  // Past one slot, whosever it is.
  __device__ __forceinline__ void Advance(int num_slots) {
    if (has_turn) at.Advance(num_slots, kTeams);
    has_turn ^= 1;
  }
};

// The sums of some tiles wait to be finished together: f32 [2, kBatchTiles, kResidentWarps,
// kSlotRows], used in turns.
inline constexpr int kBatchTiles = 4;
inline constexpr int kTileSums = kResidentWarps * kSlotRows;

// Of one from each computing warp.
__device__ __forceinline__ float SumInPairs(const float (&values)[kResidentWarps]) {
  static_assert(kResidentWarps == 8);
  return ((values[0] + values[1]) + (values[2] + values[3])) +
         ((values[4] + values[5]) + (values[6] + values[7]));
}

// Multiplies a team's share of the tiles of a part with x; kTiled: whose weights may be in a tiled
// format. Made before x is there: what can be
// computed is, while the warp would wait for others.
template <int kSlotBytes, bool kTiled>
class PartMultiplier {
 public:
  // `x`: in shared memory; bf16 at InputPlace (StoreInput), zeros to a multiple of 64, or for tiled
  // weights StoreDigits.
  __device__ PartMultiplier(const Ring<kSlotBytes>& ring, const TeamPosition& position,
                            const MatrixPart& part, int num_tiles, const std::byte* x)
      : warp_(ThreadOfPhase() / 32),
        lane_(ThreadOfPhase() % 32),
        num_tiles_(Opaque(num_tiles)),
        last_tile_(Opaque(part.matrix.most_tiles - 1)),
        num_chunks_(Opaque(part.num_chunks)),
        slot_chunks_(Opaque(part.matrix.slot_chunks)),
        turn_flips_(Opaque(part.matrix.tile_slots % 2)),
        format_(part.matrix.format),
        position_(position),
        place_(warp_, lane_) {
    lane_x_ = Opaque(static_cast<int>(SharedAddress(x)) + place_.chunk * kChunkRowBytes +
                     warp_ % 2 * (kChunkRowBytes / 2) + lane_ % 4 * 16);
    slots_ = Opaque(static_cast<int>(SharedAddress(ring.slots)));
    arrived_ = Opaque(static_cast<int>(ring.arrived));
    num_slots_ = Opaque(ring.num_slots);
    if (kTiled && part.matrix.is_tiled()) {
      const int digits = static_cast<int>(SharedAddress(x));
      units_ = {.digits = digits,
                .scales = digits + DigitScalesPlace(part.matrix.in_dim),
                .high = part.matrix.stripe_place()};
    } else {
      SetSize(part, 0);
    }
  }

  __device__ const TeamPosition& position() const { return position_; }

  // Calls finish(first, count, value) on one warp for each tile: lane i < 16 has the sum of the
  // tile's row i, which is row (or feature) first + i; of a gated tile, up rows are from lane 8 on.
  template <typename Finish>
  __device__ __forceinline__ void Run(const MatrixPart& part, float* sums, const Finish& finish) {
    float* batch_sums = sums;
#pragma unroll 1
    for (int tile = 0; tile < num_tiles_; ++tile) {
      if (tile > 0 && tile == last_tile_ && (!kTiled || format_ == TileType::kBf16))
        SetSize(part, tile);
      // Of rows g and g + 8: lanes 4 g and 4 g + 1.
      const float sum =
          !kTiled || format_ == TileType::kBf16 ? MultiplyTile() : MultiplyTiledTile();
      position_.has_turn ^= turn_flips_;
      const int in_batch = tile % kBatchTiles;
      if (lane_ % 4 < 2) {
        batch_sums[in_batch * kTileSums + warp_ * kSlotRows + lane_ % 2 * 8 + lane_ / 4] = sum;
      }
      if (in_batch != kBatchTiles - 1 && tile != num_tiles_ - 1) continue;
      SyncWorkers();
      // Half of the warps finish this batch, the others the next one.
      const int turn = tile / kBatchTiles % 2;
      const int finished = warp_ - turn * kBatchTiles;
      if (finished >= 0 && finished <= in_batch) {
        float rows[kResidentWarps] = {};
        if (lane_ < kSlotRows) {
#pragma unroll
          for (int from = 0; from < kResidentWarps; ++from) {
            rows[from] = batch_sums[finished * kTileSums + from * kSlotRows + lane_];
          }
        }
        const int finished_tile = tile - in_batch + finished;
        finish(part.TileBegin(finished_tile), part.TileCount(finished_tile), SumInPairs(rows));
      }
      batch_sums = sums + (turn ^ 1) * kBatchTiles * kTileSums;
    }
  }

 private:
  __device__ void SetSize(const MatrixPart& part, int tile) {
    place_.SetSize(part.matrix, part.TileSize(tile));
    place_.place[0] = Opaque(place_.place[0]);
    place_.place[1] = Opaque(place_.place[1]);
    place_.step = Opaque(place_.step);
  }

  // add(slot, chunk, end) for the team's slots of a tile: the first `end` chunks of the slot are
  // the part's from `chunk` on.
  template <typename Add>
  __device__ __forceinline__ void ForEachSlot(const Add& add) {
#pragma unroll 1
    for (int chunk = position_.has_turn ? 0 : slot_chunks_; chunk < num_chunks_;
         chunk += kTeams * slot_chunks_) {
      const uint32_t arrived = arrived_ + position_.at.slot * 8;
      AwaitBarrier(arrived, position_.at.parity);
      add(slots_ + position_.at.slot * kSlotBytes, chunk, min(slot_chunks_, num_chunks_ - chunk));
      __syncwarp();
      // The barriers of consumed slots lie behind those of arrived ones; each warp for one of the
      // other team too.
      if (lane_ == 0) ArriveAtBarrier(arrived + kMaxSlots * 8, kTeams);
      position_.at.Advance(num_slots_, kTeams);
    }
  }

  __device__ __forceinline__ float MultiplyTiledTile() {
    float acc[2] = {};  // of rows g and g + 8, of every fourth chunk
    ForEachSlot([&](uint32_t slot, int chunk, int end) {
      switch (format_) {
        case TileType::kU4F16:
          AddUnits<TileType::kU4F16>(slot, chunk, end, acc);
          break;
        case TileType::kU4Bf16:
          AddUnits<TileType::kU4Bf16>(slot, chunk, end, acc);
          break;
        case TileType::kS8F16:
          AddUnits<TileType::kS8F16>(slot, chunk, end, acc);
          break;
        default:
          AddUnits<TileType::kS8Bf16>(slot, chunk, end, acc);
      }
    });
    const bool is_odd = lane_ % 2 != 0;
    float sum = is_odd ? acc[1] : acc[0];
    sum += __shfl_xor_sync(0xffffffffu, is_odd ? acc[0] : acc[1], 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }

  // A warp takes every kSlotWarps-th pair of units of two stripes. The last pair may lack one.
  template <TileType kType>
  __device__ __forceinline__ void AddUnits(uint32_t slot, int chunk, int end,
                                           float (&acc)[2]) const {
    using Tile = DigitTile<kType>;
    const int first = warp_ % kSlotWarps;
    const int num_pairs = (end + 1) / 2;
    typename Tile::Places at = Tile::PlacesOfLane(lane_, slot + first * Tile::kPairBytes,
                                                  units_.digits, units_.scales, chunk + 2 * first);
    int left = (num_pairs - first + kSlotWarps - 1) / kSlotWarps;
    const int num_single = end % 2 != 0 && (num_pairs - 1) % kSlotWarps == first ? 1 : 0;
#pragma unroll 1
    for (; left >= 4 + num_single; left -= 4) AddPairs<kType, 4>(at, true, acc);
    const int whole = left - num_single;
    if (whole == 3) {
      AddPairs<kType, 3>(at, true, acc);
    } else if (whole == 2) {
      AddPairs<kType, 2>(at, true, acc);
    }
    if (whole >= 2) left = num_single;
#pragma unroll 1
    for (; left > 0; --left) AddPairs<kType, 1>(at, left > num_single, acc);
  }
  // All loads, then all products. `are_whole`: else, of one pair, there is one unit.
  template <TileType kType, int kCount>
  __device__ __forceinline__ void AddPairs(typename DigitTile<kType>::Places& at, bool are_whole,
                                           float (&acc)[2]) const {
    using Tile = DigitTile<kType>;
    typename Tile::Stage stages[kCount];
#pragma unroll
    for (int idx = 0; idx < kCount; ++idx) {
      Tile::Load(stages[idx], at, units_.high, lane_, are_whole);
      at.Advance(kSlotWarps);
    }
#pragma unroll
    for (int idx = 0; idx < kCount; ++idx) {
      Tile::Multiply(acc, stages[idx], lane_, are_whole);
    }
  }

  // Of weights in bf16; all columns of the product are the same.
  __device__ __forceinline__ float MultiplyTile() {
    float acc[4][4] = {};
    ForEachSlot([&](uint32_t slot, int chunk, int end) { AddSlot(slot, chunk, end, acc); });
    const float low = (acc[0][0] + acc[1][0]) + (acc[2][0] + acc[3][0]);
    const float high = (acc[0][2] + acc[1][2]) + (acc[2][2] + acc[3][2]);
    return lane_ % 2 == 0 ? low : high;
  }
  __device__ __forceinline__ void AddSlot(uint32_t slot, int chunk, int end, float (&acc)[4][4]) {
    // Even and odd steps, and the input, which is the same row for all columns of the product.
    StepPlaces at{.even = slot + place_.place[0],
                  .odd = slot + place_.place[1],
                  .input = static_cast<uint32_t>(lane_x_ + chunk * kChunkRowBytes)};
    int left = place_.NumSteps(end);
#pragma unroll 1
    for (; left >= 4; left -= 4) AddSteps<4>(at, acc);
    if (left >= 2) AddSteps<2>(at, acc);
    if (left % 2 != 0) AddSteps<1>(at, acc);
  }

  struct StepPlaces {
    uint32_t even;
    uint32_t odd;
    uint32_t input;
  };

  // kSteps steps, the first an even one: all loads, then all products.
  template <int kSteps>
  __device__ __forceinline__ void AddSteps(StepPlaces& at, float (&acc)[4][4]) const {
    constexpr int kInputStep = LanePlace::kChunksPerStep * kChunkRowBytes;
    uint32_t weights[2 * kSteps][4];
    uint4 inputs[kSteps];
#pragma unroll
    for (int idx = 0; idx < kSteps; ++idx) {
      uint32_t& place = idx % 2 == 0 ? at.even : at.odd;
      LoadMatrices(weights[2 * idx], place);
      LoadMatrices(weights[2 * idx + 1], place ^ LanePlace::kSecond);
      inputs[idx] = LoadShared(at.input);
      place += place_.step;
      at.input += kInputStep;
    }
#pragma unroll
    for (int idx = 0; idx < kSteps; ++idx) {
      Mma(acc[2 * idx % 4], weights[2 * idx], inputs[idx].x, inputs[idx].y);
      Mma(acc[2 * idx % 4 + 1], weights[2 * idx + 1], inputs[idx].z, inputs[idx].w);
    }
  }

  const int warp_;
  const int lane_;
  const int num_tiles_;
  const int last_tile_;
  const int num_chunks_;
  const int slot_chunks_;
  const int turn_flips_;  // from one tile to the next
  const TileType format_;
  TeamPosition position_;
  LanePlace place_;  // in bf16
  struct Units {
    int digits;   // of x, in shared memory
    int scales;   // of x
    int high;     // from the first stripe of a slot to the second
  } units_ = {};  // in a tiled format
  int lane_x_;
  int slots_;
  int arrived_;
  int num_slots_;
};

}  // namespace lapidary::cuda
