// A request's sampling parameters as a slot has them. No CUDA types.
#pragma once

#include <algorithm>

#include "ops/cuda/sampling/sampling_types.h"
#include "sampling/sampling_params.h"

namespace lapidary::cuda {

// Without lists, and what else the slot knows of its sequence.
inline SamplingSlot MakeSamplingSlot(const SamplingParams& params) {
  SamplingSlot slot;
  slot.seed = params.seed;
  slot.greedy = params.greedy();
  slot.inv_temperature = params.greedy() ? 1.0f : 1.0f / params.temperature;
  slot.top_k = std::max(params.top_k, 0);
  slot.top_p = params.top_p;
  slot.min_p = params.min_p;
  slot.repetition_penalty = params.repetition_penalty;
  slot.presence_penalty = params.presence_penalty;
  slot.frequency_penalty = params.frequency_penalty;
  slot.num_logprobs = params.num_logprobs;
  slot.has_penalties = params.has_penalties();
  return slot;
}

}  // namespace lapidary::cuda
