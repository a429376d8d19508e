// What the warps of a block of a resident step share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/cuda/resident/resident_attention.cuh"
#include "ops/cuda/resident/resident_digits.h"
#include "ops/cuda/resident/resident_exchange.cuh"
#include "ops/cuda/resident/resident_experts.cuh"
#include "ops/cuda/resident/resident_product.cuh"
#include "ops/cuda/resident/resident_program.h"
#include "ops/cuda/resident/resident_splits.cuh"
#include "ops/cuda/resident/resident_step.h"
#include "ops/cuda/resident/resident_tuning.h"

namespace lapidary::cuda {

inline constexpr int kMaxMultipliers = 32;  // per block

// Shared memory, in bytes, behind a BlockState.
inline constexpr int kStateBytes = 17664;
struct SharedLayout {
  int experts = 0;  // ResidentExpertState, with experts; behind f32 [hidden]
  int x = 0;        // the widest input, or what attention needs
  int slots = 0;
  int num_slots = 0;
  int slot_bytes = 0;

  SharedLayout(const ResidentWidths& widths, int max_bytes)
      : slot_bytes(kResidentTunings[ResidentTuningOf(widths)].slot_bytes) {
    experts = kStateBytes + widths.hidden * static_cast<int>(sizeof(float));
    x = experts;
    if (widths.num_experts > 0) {
      x += static_cast<int>(sizeof(ResidentExpertState)) + InputBytes(widths, widths.hidden);
    }
    const int x_bytes =
        std::max(InputBytes(widths, widths.widest_input),
                 static_cast<int>(sizeof(ResidentAttentionMemory)) + widths.query_bytes);
    slots = (x + x_bytes + 1023) / 1024 * 1024;  // the swizzle's period
    num_slots = std::min(kMaxSlots, (max_bytes - slots) / slot_bytes);
  }
  int total() const { return slots + num_slots * slot_bytes; }

 private:
  // Of bf16 values, with zeros to a whole chunk, or of digits.
  static int InputBytes(const ResidentWidths& widths, int values) {
    const int bytes = (values + kChunkValues - 1) / kChunkValues * kChunkRowBytes;
    return widths.tiled ? std::max(bytes, (DigitBytes(values) + 15) / 16 * 16) : bytes;
  }
};

struct KernelParams {
  ResidentStepCall call;
  SharedLayout shared;
};

extern __shared__ __align__(1024) std::byte shared_memory[];

// What is used in every phase, in shared memory: a spilled register or a descriptor in device
// memory would cost a trip through L2 each, since the ring leaves next to nothing of L1.
struct WarpState {
  int phase;
  uint32_t number;  // of the exchange of this phase
  TeamPosition team;
};
// A phase with all that can be known before it begins, made by a warp of its own.
struct PreparedPhase {
  alignas(16) ResidentPhase phase;
  MatrixPart part;
  int num_tiles;
  float multiplier[kMaxMultipliers];  // of the part's rows
};
struct BlockState {
  ResidentProgram program;
  PreparedPhase phases[kPreparedPhases];  // this one and the next ones, in turns
  uint64_t prepared[kPreparedPhases];     // barriers: the preparing warp
  uint64_t finished[kPreparedPhases];     // barriers: the computing warps
  ResidentSequence sequences[kNumKvGroups];
  SplitPlan plans[kNumKvGroups];
  KernelParams params;
  WarpState warps[kResidentWarps];
  uint64_t arrived[kMaxSlots];   // barriers of the ring
  uint64_t consumed[kMaxSlots];  // behind them
  float sums[2 * kBatchTiles * kTileSums];
  alignas(16) float block_sums[2][kResidentWarps];
  ResidentEntries entries;
};
static_assert(sizeof(BlockState) <= kStateBytes);
static_assert(offsetof(BlockState, consumed) == offsetof(BlockState, arrived) + kMaxSlots * 8);

__device__ __forceinline__ BlockState& State() {
  return *reinterpret_cast<BlockState*>(shared_memory);
}

__device__ __forceinline__ WarpState& StateOfWarp() { return State().warps[ThreadOfPhase() / 32]; }

__device__ __forceinline__ PreparedPhase& Prepared(int phase) {
  return State().phases[phase % kPreparedPhases];
}
// Barriers of a place among the prepared phases complete once for each of its phases.
__device__ __forceinline__ uint32_t ParityOfPhase(int phase) { return phase / kPreparedPhases % 2; }

template <int kSlotBytes>
__device__ __forceinline__ Ring<kSlotBytes> TheRing() {
  const KernelParams& params = State().params;
  return {.slots = shared_memory + params.shared.slots,
          .arrived = SharedAddress(State().arrived),
          .consumed = SharedAddress(State().consumed),
          .num_slots = params.shared.num_slots};
}

// x of a product, or what attention needs.
__device__ __forceinline__ std::byte* Input() { return shared_memory + State().params.shared.x; }
__device__ __forceinline__ float4* Hidden() {
  return reinterpret_cast<float4*>(shared_memory + kStateBytes);
}

__device__ __forceinline__ ResidentExpertState& ExpertState() {
  return *reinterpret_cast<ResidentExpertState*>(shared_memory + State().params.shared.experts);
}

// Four values of x, bf16, at InputPlace.
__device__ __forceinline__ void StoreInput(std::byte* input, int quad, uint2 values) {
  auto* x = reinterpret_cast<uint32_t*>(input);
  const int place = InputPlace(2 * quad);
  x[place] = values.x;
  x[place + 4] = values.y;
}

}  // namespace lapidary::cuda
