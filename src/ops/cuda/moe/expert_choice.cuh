// The choice of experts for one row, by one warp.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/launch.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {

// Integers in the order of floats; 0 is below all, and NaN counts as -inf, so that a choice is
// always valid. Equal floats (both zeros) give equal integers.
__device__ __forceinline__ uint32_t OrderOf(float value) {
  if (isnan(value)) value = -INFINITY;
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FromOrder(uint32_t order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

// Of the rank that is the lane's number; lanes from top_k on have nothing.
struct ExpertOfRank {
  int expert;
  float weight;
};

// A warp: the top_k largest of a row's logits, ties to the lower index, with softmax weights over
// the chosen. A lane gives the logits of experts idx * kWarpSize + lane.
template <int kPerLane>
__device__ __forceinline__ ExpertOfRank ChooseExperts(const float (&logits)[kPerLane],
                                                      int num_experts, int top_k) {
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = threadIdx.x % kWarpSize;
  // A lane's own, the largest first. Only neighbours change places, and only if they must: equals
  // stay in the order of their index.
  uint32_t own[kPerLane];
  int own_expert[kPerLane];
#pragma unroll
  for (int idx = 0; idx < kPerLane; ++idx) {
    own_expert[idx] = idx * kWarpSize + lane;
    own[idx] = own_expert[idx] < num_experts ? OrderOf(logits[idx]) : 0;
  }
#pragma unroll
  for (int pass = 0; pass < kPerLane; ++pass) {
#pragma unroll
    for (int idx = pass % 2; idx + 1 < kPerLane; idx += 2) {
      if (own[idx] >= own[idx + 1]) continue;
      const uint32_t order = own[idx];
      const int expert = own_expert[idx];
      own[idx] = own[idx + 1];
      own_expert[idx] = own_expert[idx + 1];
      own[idx + 1] = order;
      own_expert[idx + 1] = expert;
    }
  }
  uint32_t chosen_order = 0;
  ExpertOfRank chosen{};
  for (int rank = 0; rank < top_k; ++rank) {
    const uint32_t most = __reduce_max_sync(kAll, own[0]);
    const int expert = __reduce_min_sync(kAll, own[0] == most ? own_expert[0] : kMaxExperts);
    if (lane == rank) {
      chosen_order = most;
      chosen.expert = expert;
    }
    if (expert == own_expert[0]) {
#pragma unroll
      for (int idx = 0; idx + 1 < kPerLane; ++idx) {
        own[idx] = own[idx + 1];
        own_expert[idx] = own_expert[idx + 1];
      }
      own[kPerLane - 1] = 0;
      own_expert[kPerLane - 1] = kMaxExperts;
    }
  }
  const float logit = FromOrder(chosen_order);
  const float best = __shfl_sync(kAll, logit, 0);
  if (lane < top_k) chosen.weight = logit == best ? 1.0f : expf(logit - best);
  const float sum = WarpSum(chosen.weight);
  chosen.weight /= sum;
  return chosen;
}

// A warp: its choice, each weight times the expert's of `scales` (null: 1), to `experts` and
// `weights`, [top_k] each in rank order.
__device__ __forceinline__ void StoreChoice(const ExpertOfRank& chosen, int top_k,
                                            const float* scales, int32_t* experts, float* weights) {
  const int lane = threadIdx.x % kWarpSize;
  if (lane >= top_k) return;
  experts[lane] = chosen.expert;
  weights[lane] = scales == nullptr ? chosen.weight : chosen.weight * scales[chosen.expert];
}

}  // namespace lapidary::cuda
