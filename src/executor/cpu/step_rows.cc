#include "executor/cpu/step_rows.h"

#include "base/check.h"

namespace lapidary::cpu {

StepRows FlattenBatch(const StepBatch& batch) {
  StepRows rows;
  rows.token_ids = batch.token_ids;
  for (size_t sequence_idx = 0; sequence_idx < batch.sequences.size(); ++sequence_idx) {
    const SequenceStep& sequence = batch.sequences[sequence_idx];
    const int32_t begin = static_cast<int32_t>(rows.positions.size());
    rows.sequence_begin.push_back(begin);
    for (int32_t row = 0; row < sequence.num_rows; ++row) {
      rows.positions.push_back(sequence.num_cached + row);
      rows.sequence_of.push_back(static_cast<int32_t>(sequence_idx));
    }
    CHECK(sequence.num_outputs >= 0 && sequence.num_outputs <= sequence.num_rows);
    for (int32_t row = sequence.num_rows - sequence.num_outputs; row < sequence.num_rows; ++row) {
      rows.output_rows.push_back(begin + row);
    }
  }
  rows.sequence_begin.push_back(static_cast<int32_t>(rows.positions.size()));
  CHECK_EQ(rows.positions.size(), rows.token_ids.size());
  return rows;
}

}  // namespace lapidary::cpu
