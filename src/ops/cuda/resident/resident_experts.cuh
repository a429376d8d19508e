// The experts of a resident step.
//
// Their weights come through the ring like all others, once it is known which: the logits are made
// with the dense branch's gate and up, every block makes the same choice from them, and meanwhile
// the dense branch's own weights arrive.
#pragma once

#include <cstdint>

#include "ops/cuda/moe/expert_choice.cuh"
#include "ops/cuda/resident/resident_exchange.cuh"
#include "ops/cuda/resident/resident_producer.cuh"
#include "ops/cuda/resident/resident_program.h"

namespace lapidary::cuda {

// In shared memory; behind it the experts' input, [hidden].
struct ResidentExpertState {
  ResidentChoice choice;
  alignas(16) ResidentExperts phases[kPreparedPhases];
  alignas(16) float sums[2][kResidentWarps];

  __device__ std::byte* input() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(sizeof(ResidentExpertState) % 16 == 0);

// A packet of one f32 value; returns whether it carries the number.
__device__ __forceinline__ bool ReceiveValue(const uint64_t* packet, uint32_t number,
                                             float& value) {
  uint32_t bits, tag;
  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"
               : "=r"(bits), "=r"(tag)
               : "l"(packet)
               : "memory");
  value = __uint_as_float(bits);
  return tag == number;
}

// One warp. `number`: of the logits.
__device__ __forceinline__ void MakeChoice(const ResidentExperts& experts, int num_experts,
                                           int num_ranks, uint32_t number, ResidentChoice& choice) {
  constexpr int kPerLane = kResidentMaxExperts / 32;
  const int lane = threadIdx.x % 32;
  float scales[kPerLane] = {};
  float logits[kPerLane] = {};
#pragma unroll
  for (int idx = 0; idx < kPerLane; ++idx) {
    const int expert = idx * 32 + lane;
    if (expert < num_experts) scales[idx] = __ldg(experts.per_expert_scale + expert);
  }
  AskUntilComplete([&] {
    bool complete = true;
#pragma unroll
    for (int idx = 0; idx < kPerLane; ++idx) {
      const int expert = idx * 32 + lane;
      if (expert < num_experts) {
        complete = ReceiveValue(experts.logits + expert, number, logits[idx]) && complete;
      }
    }
    return complete;
  });
  __syncwarp();
  const ExpertOfRank chosen = ChooseExperts(logits, num_experts, num_ranks);
  float scale = 0.0f;
#pragma unroll
  for (int idx = 0; idx < kPerLane; ++idx) {
    const float of_lane = __shfl_sync(0xffffffffu, scales[idx], chosen.expert % 32);
    if (chosen.expert / 32 == idx) scale = of_lane;
  }
  if (lane < num_ranks) {
    choice.experts[lane] = chosen.expert;
    choice.weights[lane] = chosen.weight * scale;
  }
  __syncwarp();
}

}  // namespace lapidary::cuda
