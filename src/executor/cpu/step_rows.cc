#include "executor/cpu/step_rows.h"

#include "base/check.h"

namespace lapidary::cpu {

StepRows FlattenBatch(const StepBatch& batch) {
  StepRows rows;
  for (size_t sequence_idx = 0; sequence_idx < batch.sequences.size(); ++sequence_idx) {
    const SequenceStep& sequence = batch.sequences[sequence_idx];
    const int32_t begin = static_cast<int32_t>(rows.token_ids.size());
    rows.sequence_begin.push_back(begin);
    for (size_t idx = 0; idx < sequence.token_ids.size(); ++idx) {
      rows.token_ids.push_back(sequence.token_ids[idx]);
      rows.positions.push_back(sequence.num_cached + static_cast<int32_t>(idx));
      rows.sequence_of.push_back(static_cast<int32_t>(sequence_idx));
    }
    for (const int32_t row : sequence.output_rows) {
      CHECK(row >= 0 && row < static_cast<int32_t>(sequence.token_ids.size())) << row;
      rows.output_rows.push_back(begin + row);
    }
  }
  rows.sequence_begin.push_back(static_cast<int32_t>(rows.token_ids.size()));
  return rows;
}

}  // namespace lapidary::cpu
