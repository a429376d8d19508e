// Constants of a resident step that were measured, for the widths of the models
// (docs/notes/2026-11-resident-step.md).
#pragma once

#include <algorithm>
#include <iterator>

#include "ops/cuda/resident/resident_scratch.h"
#include "ops/cuda/resident/resident_step.h"

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
    // The same with tiled weights: a slot has a whole tile of the widest product's k, or an equal
    // part of it.
    {.max_hidden = 2048, .slot_bytes = 14 * 1024, .in_flight = 4, .receive_quads = 4},
    {.max_hidden = 3072, .slot_bytes = 23 * 1024, .in_flight = 3, .receive_quads = 5},
    {.max_hidden = 4096, .slot_bytes = 18 * 1024, .in_flight = 4, .receive_quads = 4},
    {.max_hidden = 6144, .slot_bytes = 19 * 1024, .in_flight = 4, .receive_quads = 4},
    {.max_hidden = 3072, .slot_bytes = 13 * 1024, .in_flight = 4, .receive_quads = 4},
};
inline constexpr int kNumResidentTunings = std::size(kResidentTunings);
inline constexpr int kNumWidths = 4;  // and one with experts
inline constexpr int kTiledTunings = kNumWidths + 1;
static_assert(kNumResidentTunings == 2 * kTiledTunings);
inline constexpr int kMaxResidentHidden = kResidentTunings[kNumWidths - 1].max_hidden;
template <int kTuning>
inline constexpr bool kIsExpertTuning = kTuning % kTiledTunings == kNumWidths;
template <int kTuning>
inline constexpr bool kIsTiledTuning = kTuning >= kTiledTunings;

// Whether the kernel takes the experts of a model, if it has any: a block makes the logit of one
// expert, some blocks have a rank's gate and up, a slot has chunks of one expert.
constexpr bool ResidentExpertsFit(int num_experts, int top_k, int width, int hidden,
                                  int num_blocks) {
  constexpr int kChunk = 64;
  return num_experts == 0 ||
         (num_experts <= std::min(num_blocks, kResidentMaxExperts) && top_k > 0 &&
          top_k <= std::min(num_blocks, kResidentMaxRanks) && width % kChunk == 0 &&
          hidden <= kResidentTunings[kNumWidths].max_hidden);
}

// Of a model that is not too wide.
constexpr int ResidentTuningOf(int hidden, bool has_experts, bool tiled) {
  const int first = tiled ? kTiledTunings : 0;
  if (has_experts) return first + kNumWidths;
  int idx = first;
  while (hidden > kResidentTunings[idx].max_hidden) ++idx;
  return idx;
}
inline int ResidentTuningOf(const ResidentWidths& widths) {
  return ResidentTuningOf(widths.hidden, widths.num_experts > 0, widths.tiled);
}

}  // namespace lapidary::cuda
