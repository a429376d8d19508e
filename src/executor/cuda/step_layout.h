// Where in a step's buffer what lies, and how large it may be. Plain host arithmetic, no CUDA
// types.
#pragma once

#include <array>
#include <cstdint>

#include "executor/cuda/forward_limits.h"
#include "kv/kv_layout.h"
#include "ops/cuda/planned_step.h"

namespace lapidary::cuda {

// Sizes that fix the layout: of a graph's steps the padded ones, and for lists what they may hold.
struct StepShape {
  int rows = 0;
  int sequences = 0;
  int outputs = 0;
  int sampled = 0;            // rows that become tokens or scores
  bool two_row_sets = false;  // the output rows are not all rows
  int rounds = 0;             // of drafts
  bool sees_ahead = false;    // rows of an image see each other
  int table_entries = 0;
  std::array<int, kNumKvGroups> items{};  // per row set

  bool HasRowSet(int row_set) const {
    return row_set == kAllRows || (row_set == kOutputRows ? two_row_sets : rounds > 0);
  }
  // Whether a step of this shape can be laid out as one of the other, which is padded.
  bool FitsInto(const StepShape& padded) const;
};

// Byte offsets of the arrays, multiples of 16, as PrepareStepCall has them.
struct StepOffsets {
  int64_t counts = 0;
  int64_t planned = 0;        // PlannedSequence [sequences]
  int64_t planned_ids = 0;    // int32 [rows]
  int64_t sequence_of = 0;    // int32 [rows]
  int64_t output_rows = 0;    // int32 [outputs]
  int64_t sampling = 0;       // SamplingRow [sampled]
  int64_t rounds = 0;         // PlannedRound [rounds]
  int64_t table_entries = 0;  // PlannedTableEntry
  // int32 [rows], [outputs]: PrepareStepCall::keys_ahead, where the step sees ahead.
  std::array<int64_t, 2> keys_ahead{};
  // AttentionItem of all groups and row sets. Last of what is planned: uploads end with it.
  int64_t planned_items = 0;

  int64_t token_ids = 0;                            // int32 [rows]
  int64_t positions = 0;                            // int32 [rows]
  int64_t draft_tokens = 0;                         // int32 [rounds]
  int64_t draft_positions = 0;                      // int32 [rounds]
  std::array<int64_t, kNumKvGroups> write_pages{};  // int32 [rows]; 0: the row is not kept
  std::array<int64_t, kNumKvGroups> write_slots{};  // int32 [rows]
  std::array<std::array<int64_t, kNumRowSets>, kNumKvGroups> num_items{};  // int32
  std::array<std::array<int64_t, kNumRowSets>, kNumKvGroups> attention{};
  std::array<std::array<int64_t, kNumRowSets>, kNumKvGroups> items{};
  int64_t total = 0;
};

StepOffsets LayOutStep(const StepShape& shape);

// Entries of page tables that a decode step of so many sequences brings: seldom any, since a page
// holds many tokens.
int GraphTableEntries(int sequences);

// Tiles of attention that the queries of one sequence come to, for one KV head.
int AttentionTiles(const LayerPlan& layer, int num_queries);

// The most that any step may need.
StepShape MaxStepShape(const ModelPlan& plan, const KvLayout& layout,
                       const CudaForwardLimits& limits);

}  // namespace lapidary::cuda
