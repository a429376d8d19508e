// A step batch flattened to rows: the shape in which the CPU operations see it.
#pragma once

#include <cstdint>
#include <span>
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
  // Of each sequence: its slot, and the position of its first row. Keys before that lie in pages.
  std::vector<int32_t> slot_of;
  std::vector<int32_t> first_position;
  // Of each row, where some sequence has media; else empty: its embedding (null: its token's), and
  // the last position that it sees in sliding layers.
  std::vector<const float*> soft_rows;
  std::vector<int32_t> last_seen;
  // Of each row, where some sequence has an adapter; else empty. Null: none.
  std::vector<const Adapter*> adapters;
  // Rows that produce logits, ascending.
  std::vector<int32_t> output_rows;

  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
};

// Where a slot stands between steps.
struct SlotState {
  int32_t length = 0;      // tokens whose KV its pages hold
  int32_t last_token = 0;  // behind them, not computed yet
  // Its sequence has ended with an error: until it is bound again the slot has no next token.
  bool has_failed = false;
};

// Takes out of the batch what sequences that have failed can no longer do. The batch was planned
// before the failure was known. Rows that continue from such a slot go; rows of known tokens stay,
// for the prefix cache counts on their KV, but give no output.
void LeaveOutFailed(std::span<const SlotState> slots, StepBatch& batch);

// `slots` by slot, for every sequence of the batch.
StepRows FlattenBatch(const StepBatch& batch, std::span<const SlotState> slots);

// Puts the media of a sequence into its rows: their ids become the pad token's, whose per-layer
// embedding such rows have.
void PlaceSoftTokens(const ModelPlan& plan, const SoftTokenRuns& media, size_t sequence_idx,
                     StepRows& rows);

}  // namespace lapidary::cpu
