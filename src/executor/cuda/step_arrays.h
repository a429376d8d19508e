// A step batch flattened into the arrays that kernels read: one buffer, one upload.
//
// The buffer has two parts: what the host planned, uploaded, and behind it what the first kernel of
// the step prepares from it (ops/cuda/prepare_step.h). Every array has a fixed place that follows
// from a StepShape alone, so that a captured graph can be replayed with other contents. Plain host
// arithmetic, no device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/cuda/slot_requests.h"
#include "executor/cuda/step_layout.h"
#include "executor/cuda/step_masks.h"
#include "executor/step_batch.h"
#include "kv/kv_layout.h"
#include "ops/cuda/attention/attention_work.h"
#include "ops/cuda/prepare_step.h"
#include "ops/cuda/sampling/sampling.h"

namespace lapidary::cuda {

// Sequences and rows of each, where they all have as many and all rows are sampled: a decode step
// is (n, 1), one that verifies K drafts (n, K + 1).
struct UniformStep {
  int sequences = 0;
  int rows_per_sequence = 0;  // 0: the step is not uniform
  bool drafts_here = false;   // by the executor's drafter, all of them
};
UniformStep FindUniformStep(const StepBatch& batch);

// Rows of a step that are a picture's or a sound's instead of a token's embedding.
struct SoftRows {
  int32_t first_row = 0;  // of the step
  int32_t num_rows = 0;
  const float* values = nullptr;  // [num_rows, hidden], of the request's media
};

// The contents of one step, collected before anything is laid out.
class StepArrays {
 public:
  struct Options {
    std::array<AttentionGeometry, kNumKvGroups> geometry{};
    // Of the assistant's layers that read the group; their window is that of DraftWindow.
    std::array<AttentionGeometry, kNumKvGroups> draft_geometry{};
    std::array<int, kNumKvGroups> head_dim{};
    int num_sms = 1;
    bool batch_invariant = false;
    // By group and place in kAttentionTileRows.
    std::array<std::array<AttentionWorkOptions, std::size(kAttentionTileRows)>, kNumKvGroups>
        work{};
    bool split_row_sets = false;  // the model has layers that need output rows only
    int padding_slot = 0;         // whose sequences pad a step
    std::array<int, kNumKvGroups> table_stride{};  // blocks of a slot's page table
    int64_t replaced_capacity = 0;                 // words for values that adjustments replace
    int hidden_size = 0;
    int32_t media_pad_id = 0;  // whose per-layer embeddings soft rows have
    bool images_see_both_ways = false;
  };

  explicit StepArrays(const Options& options) : options_(options) {}

  // With more `padded_sequences` than the batch has (a uniform step), sequences that nobody reads
  // fill up.
  void Collect(const StepBatch& batch, int padded_sequences, const SlotRequests& requests,
               int32_t step_number = 0);

  // Exactly what the step needs.
  StepShape shape() const;
  // Of attention's items.
  using TileRows = std::array<std::array<int, kNumRowSets>, kNumKvGroups>;
  const TileRows& tile_rows() const { return tile_rows_; }
  const SamplingNeeds& sampling_needs() const { return needs_; }
  // Index of each sequence's first sampled or scored row.
  const std::vector<int32_t>& first_sampled() const { return first_sampled_; }
  // Sampled rows are drawn in passes, each as large as there is room for replaced values: the first
  // row of each. One pass, nearly always.
  const std::vector<int32_t>& sampling_passes() const { return sampling_passes_; }

  // Sequences whose sampled rows are under a grammar.
  const std::vector<MaskedSequence>& masked() const { return masked_; }
  const std::vector<PlannedRound>& rounds() const { return rounds_; }
  // In order of rows.
  const std::vector<SoftRows>& soft_rows() const { return soft_rows_; }
  // Rounds that have a draft of this index: the first so many, since the longest come first.
  const std::vector<int32_t>& rounds_with_draft() const { return rounds_with_draft_; }

  // Writes everything planned where `offsets` says; returns the bytes to upload.
  int64_t Write(const StepOffsets& offsets, std::byte* to) const;

 private:
  void Clear();
  void AddSequence(const SequenceStep& sequence);
  void AddMedia(const SequenceStep& sequence, const SoftTokenRuns& media);
  void AddSampling(const SequenceStep& sequence, const SlotRequests::Request& request,
                   std::span<const int32_t> scored_ids);
  void AddSamplingRow(SamplingRow row, int64_t replaced_words);
  void PlanRounds();
  void PlanKeysAheadOfOutputs();
  void PlanAttention();
  void PlanAttentionOf(int group, int row_set);
  void AddAttentionSequences(int row_set);

  const Options options_;
  bool all_are_outputs_ = false;
  TileRows tile_rows_{};
  bool two_row_sets_ = false;
  PlannedCounts counts_;
  std::vector<PlannedSequence> planned_;
  std::vector<int32_t> num_uncertain_;  // by sequence
  std::vector<MaskedSequence> masked_;
  int32_t num_masks_ = 0;
  std::vector<PlannedRound> rounds_;
  std::vector<int32_t> rounds_with_draft_;
  std::vector<SoftRows> soft_rows_;
  // Of all rows and of the outputs; empty: none sees ahead.
  std::array<std::vector<int32_t>, 2> keys_ahead_;
  std::vector<int32_t> planned_ids_;
  std::vector<int32_t> sequence_of_;
  std::vector<int32_t> output_rows_;
  std::vector<PlannedTableEntry> table_entries_;
  std::vector<AttentionItem> planned_items_;
  SamplingNeeds needs_;
  std::vector<SamplingRow> sampling_;
  std::vector<int32_t> first_sampled_;
  std::vector<int32_t> sampling_passes_;
  int64_t num_replaced_ = 0;  // words of the last pass
  // Kept between steps for their memory.
  std::vector<AttentionSequence> attention_;
  std::vector<int32_t> attention_uncertain_;
  std::vector<AttentionItem> items_;
};

}  // namespace lapidary::cuda
