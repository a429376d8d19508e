// How often each expert of a layer was chosen, added up on the device.
#pragma once

#include <cstdint>

#include "ops/cuda/launch.h"
#include "ops/cuda/planned_step.h"

namespace lapidary::cuda {

struct CountExpertsCall {
  int rows = 0;
  int top_k = 0;
  const int32_t* experts = nullptr;  // [rows, top_k]
  // Rows of this slot, which is padding's, do not count.
  int32_t padding_slot = 0;
  const int32_t* output_rows = nullptr;        // [rows] rows of the step; null: all, in order
  const int32_t* sequence_of = nullptr;        // by row of the step
  const PlannedSequence* sequences = nullptr;  // of the step
  unsigned long long* counts = nullptr;        // [experts] are added to
};
void RunCountExperts(const LaunchContext& context, const CountExpertsCall& call);

}  // namespace lapidary::cuda
