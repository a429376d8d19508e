#include "executor/cpu/step_rows.h"

#include "base/check.h"

namespace lapidary::cpu {

StepRows FlattenBatch(const StepBatch& batch, std::span<const SlotState> slots) {
  StepRows rows;
  rows.token_ids = batch.token_ids;
  for (size_t sequence_idx = 0; sequence_idx < batch.sequences.size(); ++sequence_idx) {
    const SequenceStep& sequence = batch.sequences[sequence_idx];
    const int32_t begin = static_cast<int32_t>(rows.positions.size());
    const SlotState& slot = slots[sequence.slot];
    int32_t first_position = sequence.num_cached;
    if (sequence.num_rows > 0) {
      int32_t& first_token = rows.token_ids[begin];
      first_position = FirstPosition(first_token, sequence.num_cached, slot.length);
      if (first_token == kTokenFromSlot) first_token = slot.last_token;
    }
    rows.sequence_begin.push_back(begin);
    rows.slot_of.push_back(sequence.slot);
    rows.first_position.push_back(first_position);
    for (int32_t row = 0; row < sequence.num_rows; ++row) {
      rows.positions.push_back(first_position + row);
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
