// The matrix products of a resident step: a ring of weight pieces in shared memory, filled by one
// warp and used by the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/copy_engine.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/resident_exchange.cuh"
#include "ops/cuda/resident_program.h"
#include "ops/cuda/warp_mma.cuh"

namespace lapidary::cuda {

inline constexpr int kMaxSlots = 12;
// Slots on their way at most: what the latency of memory asks for. With more, the packets of the
// computing warps come later.
inline constexpr int kInFlight = 2;

__device__ __forceinline__ MatrixPart PartOfBlock(const ResidentMatrix& matrix) {
  return {matrix, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
}

// The computing warps are two teams that take the slots of the ring in turns.
inline constexpr int kTeams = kResidentWarps / kSlotWarps;

struct Ring {
  std::byte* slots;   // in shared memory
  uint32_t arrived;   // barriers [num_slots]: the bringing thread, and the bytes it asked for
  uint32_t consumed;  // barriers [num_slots], kMaxSlots behind those: the computing warps
  int num_slots;

  __device__ std::byte* Slot(const RingPosition& at) const { return slots + at.slot * kSlotBytes; }
  __device__ uint32_t Arrived(const RingPosition& at) const { return arrived + at.slot * 8; }
  __device__ uint32_t Consumed(const RingPosition& at) const { return consumed + at.slot * 8; }
};

// Where a computing warp stands in the sequence of slots.
struct TeamPosition {
  RingPosition next;     // of all slots
  bool has_turn = true;  // it is the team's

  __device__ __forceinline__ void Advance(int num_slots) {
    next.Advance(num_slots);
    has_turn = !has_turn;
  }
};

// The sums of some tiles wait to be finished together: f32 [2, kBatchTiles, kResidentWarps,
// kSlotRows], used in turns.
inline constexpr int kBatchTiles = 4;
inline constexpr int kTileSums = kResidentWarps * kSlotRows;

// Multiplies a team's share of the tiles of a part with x. Made before x is there: what can be
// computed is, while the warp would wait for others.
class PartMultiplier {
 public:
  // `x`: bf16 in shared memory at InputPlace, zeros to a multiple of 64.
  __device__ PartMultiplier(const Ring& ring, const TeamPosition& position, const MatrixPart& part,
                            int num_tiles, const std::byte* x)
      : num_tiles_(Opaque(num_tiles)),
        num_chunks_(Opaque(part.num_chunks)),
        slot_chunks_(Opaque(part.matrix.slot_chunks)),
        position_(position),
        place_(ThreadOfPhase() / 32, ThreadOfPhase() % 32) {
    const int warp = ThreadOfPhase() / 32;
    const int lane = ThreadOfPhase() % 32;
    lane_x_ = Opaque(static_cast<int>(SharedAddress(x)) + place_.chunk * kChunkRowBytes +
                     warp % 2 * (kChunkRowBytes / 2) + lane % 4 * 16);
    slots_ = Opaque(static_cast<int>(SharedAddress(ring.slots)));
    arrived_ = Opaque(static_cast<int>(ring.arrived));
    num_slots_ = Opaque(ring.num_slots);
    SetSize(part, 0);
  }

  __device__ const TeamPosition& position() const { return position_; }

  // Calls finish(first, count, value) on one warp for each tile: lane i < 16 has the sum of the
  // tile's row i, which is row (or feature) first + i; of a gated tile, up rows are from lane 8 on.
  template <typename Finish>
  __device__ __forceinline__ void Run(const MatrixPart& part, float* sums, const Finish& finish) {
    const int warp = ThreadOfPhase() / 32;
    const int lane = ThreadOfPhase() % 32;
    float* batch_sums = sums;
#pragma unroll 1
    for (int tile = 0; tile < num_tiles_; ++tile) {
      if (tile > 0 && part.IsLast(tile)) SetSize(part, tile);
      float acc[4][4] = {};
#pragma unroll 1
      for (int chunk = 0; chunk < num_chunks_; chunk += slot_chunks_) {
        if (position_.has_turn) MultiplySlot(chunk, min(slot_chunks_, num_chunks_ - chunk), acc);
        position_.Advance(num_slots_);
      }
      const int in_batch = tile % kBatchTiles;
      if (lane % 4 == 0) {
        float* tile_sums = batch_sums + in_batch * kTileSums + warp * kSlotRows + lane / 4;
        tile_sums[0] = (acc[0][0] + acc[1][0]) + (acc[2][0] + acc[3][0]);
        tile_sums[8] = (acc[0][2] + acc[1][2]) + (acc[2][2] + acc[3][2]);
      }
      if (in_batch != kBatchTiles - 1 && tile != num_tiles_ - 1) continue;
      SyncWorkers();
      // Half of the warps finish this batch, the others the next one.
      const int turn = tile / kBatchTiles % 2;
      const int finished = warp - turn * kBatchTiles;
      if (finished >= 0 && finished <= in_batch) {
        float value = 0.0f;
        if (lane < kSlotRows) {
#pragma unroll
          for (int from = 0; from < kResidentWarps; ++from) {
            value += batch_sums[finished * kTileSums + from * kSlotRows + lane];
          }
        }
        const int finished_tile = tile - in_batch + finished;
        finish(part.TileBegin(finished_tile), part.TileCount(finished_tile), value);
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

  // Adds the first `end` chunks of the next slot, which hold the part's from `chunk` on.
  __device__ __forceinline__ void MultiplySlot(int chunk, int end, float (&acc)[4][4]) {
    const uint32_t arrived = arrived_ + position_.next.slot * 8;
    AwaitBarrier(arrived, position_.next.parity);
    // Even and odd steps, and the input, which is the same row for all columns of the product.
    const uint32_t slot = slots_ + position_.next.slot * kSlotBytes;
    uint32_t even = slot + place_.place[0];
    uint32_t odd = slot + place_.place[1];
    uint32_t input = lane_x_ + chunk * kChunkRowBytes;
    constexpr int kInputStep = LanePlace::kChunksPerStep * kChunkRowBytes;
    int left = place_.NumSteps(end);
#pragma unroll 1
    for (; left >= 2; left -= 2) {
      uint32_t weights[4][4];
      uint4 inputs[2];
      LoadMatrices(weights[0], even);
      LoadMatrices(weights[1], even ^ LanePlace::kSecond);
      inputs[0] = LoadShared(input);
      LoadMatrices(weights[2], odd);
      LoadMatrices(weights[3], odd ^ LanePlace::kSecond);
      inputs[1] = LoadShared(input + kInputStep);
#pragma unroll
      for (int idx = 0; idx < 2; ++idx) {
        Mma(acc[2 * idx], weights[2 * idx], inputs[idx].x, inputs[idx].y);
        Mma(acc[2 * idx + 1], weights[2 * idx + 1], inputs[idx].z, inputs[idx].w);
      }
      even += place_.step;
      odd += place_.step;
      input += 2 * kInputStep;
    }
    if (left > 0) {
      uint32_t weights[2][4];
      LoadMatrices(weights[0], even);
      LoadMatrices(weights[1], even ^ LanePlace::kSecond);
      const uint4 inputs = LoadShared(input);
      Mma(acc[0], weights[0], inputs.x, inputs.y);
      Mma(acc[1], weights[1], inputs.z, inputs.w);
    }
    __syncwarp();
    // The barriers of consumed slots lie behind those of arrived ones; each warp for one of the
    // other team too.
    if (ThreadOfPhase() % 32 == 0) ArriveAtBarrier(arrived + kMaxSlots * 8, kTeams);
  }

  const int num_tiles_;
  const int num_chunks_;
  const int slot_chunks_;
  TeamPosition position_;
  LanePlace place_;
  int lane_x_;
  int slots_;
  int arrived_;
  int num_slots_;
};

}  // namespace lapidary::cuda
