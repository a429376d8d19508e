// One step on the device: its arrays and what it is to produce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  std::vector<SoftRows> soft_rows;         // StepArrays, their values page-locked
  const uint32_t* masks = nullptr;         // StepMasks
  // Called once before anything is sampled, where masks have to be made first.
  std::function<void()> before_sampling;
  // Run stops before it; Sample does the rest. All outputs fit into the logits buffer.
  bool defers_sampling = false;
  // Page-locked; null: not wanted.
  int32_t* ids_out = nullptr;         // [rows] of steps with rounds, and
  int32_t* number_out = nullptr;      // their number (PublishIdsCall)
  float* logits_out = nullptr;        // [outputs, vocab]
  float* draft_logits_out = nullptr;  // [drafts, vocab], round after round as they are sorted

  template <typename T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(arrays + offset);
  }
};

}  // namespace lapidary::cuda
