// What the host plans of a step, as it lies in memory. No CUDA types.
#pragma once

#include <cstdint>

#include "model/kv_entry.h"

namespace lapidary::cuda {

// Rows as attention sees them: all rows of the step, or its output rows alone (layers behind the
// prefill shortcut).
inline constexpr int kAllRows = 0;
inline constexpr int kOutputRows = 1;
inline constexpr int kNumRowSets = 2;

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

// A block of a slot's page table.
struct PlannedTableEntry {
  int32_t index = 0;  // in the group's tables
  int32_t group = 0;
  int32_t page = 0;
  int32_t unused = 0;
};

// Numbers that differ between steps of one shape.
struct PlannedCounts {
  int32_t num_table_entries = 0;
  int32_t first_item[kNumKvGroups][kNumRowSets] = {};  // in PrepareStepCall::planned_items
  int32_t num_items[kNumKvGroups][kNumRowSets] = {};
};

}  // namespace lapidary::cuda
