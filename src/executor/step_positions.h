// Where the rows of a step stand, given where its slots do: the one arithmetic of every executor,
// for the host and for kernels.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace lapidary {

// In place of the id of a sequence's first row: the slot's last token. The rows then begin where
// the slot ends, which the host may not know yet.
inline constexpr int32_t kTokenFromSlot = -1;
// In place of the ids of all drafts of a sequence: what the executor's drafter proposes.
inline constexpr int32_t kTokenFromDrafter = -2;

inline constexpr int32_t kMaxDrafts = 32;  // of a sequence in one step

// Position of a sequence's first row.
LAPIDARY_HOST_DEVICE inline int32_t FirstPosition(int32_t first_token, int32_t num_cached,
                                                  int32_t slot_length) {
  return first_token == kTokenFromSlot ? slot_length : num_cached;
}

// Where the slot ends once `num_accepted` of the step's `num_sampled` trailing rows have turned out
// to count, and all before them.
LAPIDARY_HOST_DEVICE inline int32_t LengthAfter(int32_t first_position, int32_t num_rows,
                                                int32_t num_sampled, int32_t num_accepted) {
  return first_position + num_rows - num_sampled + num_accepted;
}

// The number that the token behind a row is drawn with: its index in the sequence's output.
LAPIDARY_HOST_DEVICE inline uint64_t DrawNumber(int32_t position, int32_t prompt_len) {
  return static_cast<uint64_t>(static_cast<int64_t>(position) + 1 - prompt_len);
}

}  // namespace lapidary
