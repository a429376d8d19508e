#include "executor/cpu/step_rows.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lapidary::cpu {

void LeaveOutFailed(std::span<const SlotState> slots, StepBatch& batch) {
  const auto has_failed = [&](const SequenceStep& step) { return slots[step.slot].has_failed; };
  if (std::ranges::none_of(batch.sequences, has_failed)) return;
  const std::vector<int32_t> ids = std::exchange(batch.token_ids, {});
  const std::vector<int32_t> scored_ids = std::exchange(batch.scored_ids, {});
  auto id = ids.begin();
  auto scored_id = scored_ids.begin();
  for (SequenceStep& step : batch.sequences) {
    const auto end_id = id + step.num_rows;
    const auto end_scored_id = scored_id + step.num_scored;
    const bool keeps_rows = !has_failed(step) || step.num_rows == 0 || *id != kTokenFromSlot;
    if (keeps_rows) batch.token_ids.insert(batch.token_ids.end(), id, end_id);
    if (has_failed(step)) {
      step.num_rows = keeps_rows ? step.num_rows : 0;
      step.num_outputs = 0;
      step.num_scored = 0;
      step.num_drafts = 0;
      step.samples = false;
    } else {
      batch.scored_ids.insert(batch.scored_ids.end(), scored_id, end_scored_id);
    }
    id = end_id;
    scored_id = end_scored_id;
  }
}

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

void PlaceSoftTokens(const ModelPlan& plan, const SoftTokenRuns& media, size_t sequence_idx,
                     StepRows& rows) {
  const int32_t begin = rows.sequence_begin[sequence_idx];
  const int32_t end = rows.sequence_begin[sequence_idx + 1];
  if (begin == end) return;
  if (rows.soft_rows.empty()) {
    rows.soft_rows.resize(rows.num_rows());
    rows.last_seen = rows.positions;
  }
  for (int32_t row = begin; row < end; ++row) {
    const int32_t position = rows.positions[row];
    const SoftTokenRun* run = FindRun(media, position);
    if (run == nullptr) continue;
    rows.token_ids[row] = plan.media_tokens->pad;
    rows.soft_rows[row] = run->rows->data() + int64_t{position - run->position} * plan.hidden_size;
    if (!run->is_image || !plan.images_see_both_ways) continue;
    // Its keys are those of this step.
    CHECK(rows.positions[begin] <= run->position && run->end() - 1 <= rows.positions[end - 1])
        << "an image is cut";
    rows.last_seen[row] = run->end() - 1;
  }
}

}  // namespace lapidary::cpu
