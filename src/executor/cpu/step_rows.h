// A step batch flattened to rows: the shape in which the CPU operations see it.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/step_batch.h"

namespace lapidary::cpu {

struct StepRows {
  // One entry per row of all sequences, in order.
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> sequence_of;
  // First row of each sequence, plus the total at the end.
  std::vector<int32_t> sequence_begin;
  // Rows that produce logits, ascending.
  std::vector<int32_t> output_rows;

  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
};

StepRows FlattenBatch(const StepBatch& batch);

}  // namespace lapidary::cpu
