// One step on the device: its arrays and what it is to produce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/cuda/step_arrays.h"

namespace lapidary::cuda {

struct DeviceStep {
  StepShape shape;
  StepOffsets offsets;
  std::byte* arrays = nullptr;
  StepArrays::TileRows tile_rows{};  // of attention
  SamplingNeeds sampling;
  std::vector<int32_t> sampling_passes;    // StepArrays
  std::vector<int32_t> rounds_with_draft;  // StepArrays
  // Page-locked; null: not wanted.
  float* logits_out = nullptr;        // [outputs, vocab]
  float* draft_logits_out = nullptr;  // [drafts, vocab], round after round as they are sorted

  template <typename T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(arrays + offset);
  }
};

}  // namespace lapidary::cuda
