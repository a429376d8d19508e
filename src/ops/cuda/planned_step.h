// What the host plans of a step, as it lies in memory. No CUDA types.
#pragma once

#include <cstdint>

#include "model/kv_entry.h"

namespace lapidary::cuda {

// Rows as attention sees them: all rows of the step, its output rows alone (layers behind the
// prefill shortcut), or a row for each round of drafts (layers of the assistant).
inline constexpr int kAllRows = 0;
inline constexpr int kOutputRows = 1;
inline constexpr int kDraftRows = 2;
inline constexpr int kNumRowSets = 3;

// One sequence of the step.
struct PlannedSequence {
  int32_t slot = 0;
  int32_t num_cached = 0;  // exactly, unless its first id is kTokenFromSlot
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_output = 0;  // of the step's outputs
  int32_t num_outputs = 0;
  int32_t num_sampled = 0;
  int32_t unused = 0;
};

// A round of drafts: what the drafter proposes behind a sequence's last token.
struct PlannedRound {
  int32_t sequence = 0;  // of the step
  int32_t num_drafts = 0;
  int32_t first_sampled = 0;  // of the step's sampled rows: the one whose token is compared with
                              // the first draft
  int32_t first_draft = 0;    // of all that the step asks the drafter for, in its sequences' order
};

// A block of a slot's page table.
struct PlannedTableEntry {
  int32_t index = 0;  // in the group's tables
  int32_t group = 0;
  int32_t page = 0;
  int32_t unused = 0;
};

// Numbers that differ between steps of one shape.
struct PlannedCounts {
  int32_t step_number = 0;
  int32_t num_table_entries = 0;
  int32_t first_item[kNumKvGroups][kNumRowSets] = {};  // in PrepareStepCall::planned_items
  int32_t num_items[kNumKvGroups][kNumRowSets] = {};
};

}  // namespace lapidary::cuda
