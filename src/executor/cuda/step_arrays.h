// A step batch flattened into the arrays that kernels read: one buffer, one upload.
//
// Every array has a fixed place that follows from a StepShape alone, so that a captured graph can
// be replayed with other contents. Plain host arithmetic, no device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/step_batch.h"
#include "kv/kv_layout.h"
#include "ops/cuda/attention/attention_work.h"
#include "ops/cuda/sampling/sampling.h"

namespace lapidary::cuda {

// Rows as attention sees them: all rows of the step, or its output rows alone (layers behind the
// prefill shortcut).
inline constexpr int kAllRows = 0;
inline constexpr int kOutputRows = 1;
inline constexpr int kNumRowSets = 2;

// Sizes that fix the layout: of a graph's steps the padded ones, and for lists what they may hold.
struct StepShape {
  int rows = 0;
  int sequences = 0;
  int outputs = 0;
  int sampled = 0;                           // rows that become tokens or scores
  bool two_row_sets = false;                 // the output rows are not all rows
  std::array<int, 3> list_entries{};         // suppressed tokens, biases, history
  std::array<int, kNumKvGroups> items{};     // per row set
  std::array<int, kNumKvGroups> page_ids{};  // of all sequences together
};

// Byte offsets of the arrays, multiples of 16.
struct StepOffsets {
  int64_t token_ids = 0;                            // int32 [rows]
  int64_t slots = 0;                                // int32 [rows]
  int64_t positions = 0;                            // int32 [rows]
  std::array<int64_t, kNumKvGroups> write_pages{};  // int32 [rows]; 0: the row is not kept
  std::array<int64_t, kNumKvGroups> write_slots{};  // int32 [rows]
  int64_t output_rows = 0;                          // int32 [outputs]
  std::array<std::array<int64_t, kNumRowSets>, kNumKvGroups> num_items{};  // int32
  int64_t sampling = 0;                                                    // SamplingRow [sampled]
  std::array<int64_t, 3> lists{};  // suppressed, biases, history
  std::array<std::array<int64_t, kNumRowSets>, kNumKvGroups> sequences{};
  std::array<std::array<int64_t, kNumRowSets>, kNumKvGroups> items{};
  std::array<int64_t, kNumKvGroups> page_ids{};  // int32; last, since uploads end where they do
  int64_t total = 0;
};

StepOffsets LayOutStep(const StepShape& shape);

// The contents of one step, collected before anything is laid out.
class StepArrays {
 public:
  struct Options {
    std::array<AttentionGeometry, kNumKvGroups> geometry{};
    std::array<AttentionWorkOptions, kNumKvGroups>
        decode_work{};  // every row is its sequence's last
    std::array<AttentionWorkOptions, kNumKvGroups> mixed_work{};
    bool split_row_sets = false;  // the model has layers that need output rows only
    int padding_slot = 0;         // where padding rows leave their token
  };

  StepArrays(const ModelPlan& plan, const KvLayout& layout, const Options& options);

  // `is_pending(slot)`: whether the slot's last token is still uncollected. With `padded_rows`
  // above the batch's rows (a decode step), rows that nobody reads fill up.
  template <typename IsPending>
  void Collect(const StepBatch& batch, int padded_rows, const IsPending& is_pending) {
    CollectRows(batch, padded_rows);
    for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
      CollectSampling(batch, idx, is_pending(batch.sequences[idx].slot));
    }
    PadSampling();
    PlanAttention();
  }

  // Exactly what the step needs.
  StepShape shape() const;
  // Whether every sequence has one row and that row becomes a token, so that a graph fits.
  static bool IsPlainDecode(const StepBatch& batch);

  bool is_decode() const { return is_decode_; }
  const SamplingNeeds& sampling_needs() const { return needs_; }
  // Index of each sequence's first sampled or scored row.
  const std::vector<int32_t>& first_sampled() const { return first_sampled_; }

  // Writes everything where `offsets` says; returns the bytes to upload.
  int64_t Write(const StepOffsets& offsets, std::byte* to) const;

 private:
  void CollectRows(const StepBatch& batch, int padded_rows);
  void CollectSampling(const StepBatch& batch, size_t sequence_idx, bool is_pending);
  void PadSampling();
  void PlanAttention();
  void AddTables(const SequenceStep& sequence, std::array<int32_t, kNumKvGroups>& table_base);

  const ModelPlan& plan_;
  const KvLayout& layout_;
  const Options options_;

  bool is_decode_ = false;
  bool two_row_sets_ = false;
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> slots_;
  std::vector<int32_t> positions_;
  std::array<std::vector<int32_t>, kNumKvGroups> write_pages_;
  std::array<std::vector<int32_t>, kNumKvGroups> write_slots_;
  std::vector<int32_t> output_rows_;
  std::vector<int32_t> first_row_;     // of each sequence
  std::vector<int32_t> first_output_;  // of each sequence
  std::array<std::vector<int32_t>, kNumKvGroups> page_ids_;
  std::array<std::array<std::vector<AttentionSequence>, kNumRowSets>, kNumKvGroups> sequences_;
  std::array<std::array<std::vector<AttentionItem>, kNumRowSets>, kNumKvGroups> items_;
  SamplingNeeds needs_;
  std::vector<SamplingRow> sampling_;
  std::vector<int32_t> first_sampled_;
  std::vector<int32_t> suppressed_;
  std::vector<SamplingBias> biases_;
  std::vector<SamplingHistory> history_;
};

}  // namespace lapidary::cuda
