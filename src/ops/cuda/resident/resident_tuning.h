// Constants of a resident step that were measured, for the widths of the models
// (docs/notes/2026-11-resident-step.md).
#pragma once

#include <algorithm>
#include <iterator>

#include "ops/cuda/resident/resident_scratch.h"

namespace lapidary::cuda {

struct ResidentTuning {
  int max_hidden;
  // A ring of smaller slots is freed sooner and leaves less of the shared memory unused, but each
  // has a cost of its own.
  int slot_bytes;
  // Slots on their way at most: what the latency of memory asks for. With more, the packets of the
  // computing warps come later.
  int in_flight;
  // Of a long vector, quads that a thread asks for at a time, until it has them all.
  int receive_quads;
};

inline constexpr ResidentTuning kResidentTunings[] = {
    {.max_hidden = 2048, .slot_bytes = 12 * 1024, .in_flight = 4, .receive_quads = 4},
    {.max_hidden = 3072, .slot_bytes = 20 * 1024, .in_flight = 2, .receive_quads = 5},
    {.max_hidden = 4096, .slot_bytes = 20 * 1024, .in_flight = 3, .receive_quads = 4},
    {.max_hidden = 6144, .slot_bytes = 21 * 1024, .in_flight = 3, .receive_quads = 4},
    // With experts, of any width.
    {.max_hidden = 3072, .slot_bytes = 24 * 1024, .in_flight = 2, .receive_quads = 6},
};
inline constexpr int kNumResidentTunings = std::size(kResidentTunings);
inline constexpr int kExpertTuning = kNumResidentTunings - 1;
inline constexpr int kMaxResidentHidden = kResidentTunings[kExpertTuning - 1].max_hidden;

// Whether the kernel takes the experts of a model, if it has any: a block makes the logit of one
// expert, some blocks have a rank's gate and up, a slot has chunks of one expert.
constexpr bool ResidentExpertsFit(int num_experts, int top_k, int width, int hidden,
                                  int num_blocks) {
  constexpr int kChunk = 64;
  return num_experts == 0 ||
         (num_experts <= std::min(num_blocks, kResidentMaxExperts) && top_k > 0 &&
          top_k <= std::min(num_blocks, kResidentMaxRanks) && width % kChunk == 0 &&
          hidden <= kResidentTunings[kExpertTuning].max_hidden);
}

// Of a model that is not too wide.
constexpr int ResidentTuningOf(int hidden, bool has_experts) {
  if (has_experts) return kExpertTuning;
  int idx = 0;
  while (hidden > kResidentTunings[idx].max_hidden) ++idx;
  return idx;
}

}  // namespace lapidary::cuda
