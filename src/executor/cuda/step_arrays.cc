#include "executor/cuda/step_arrays.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace lapidary::cuda {
namespace {

template <typename T>
void CopyTo(const std::vector<T>& values, std::byte* base, int64_t offset) {
  if (!values.empty()) std::memcpy(base + offset, values.data(), values.size() * sizeof(T));
}

}  // namespace

UniformStep FindUniformStep(const StepBatch& batch) {
  if (batch.sequences.empty()) return {};
  const int rows = batch.sequences[0].num_rows;
  const bool is_uniform =
      std::all_of(batch.sequences.begin(), batch.sequences.end(), [&](const SequenceStep& step) {
        return step.num_rows == rows && step.num_outputs == rows && step.num_sampled() == rows &&
               step.num_scored == 0;
      });
  return {static_cast<int>(batch.sequences.size()), is_uniform ? rows : 0};
}

void StepArrays::Clear() {
  all_are_outputs_ = true;
  counts_ = {};
  planned_.clear();
  num_uncertain_.clear();
  planned_ids_.clear();
  sequence_of_.clear();
  output_rows_.clear();
  table_entries_.clear();
  planned_items_.clear();
  needs_ = {};
  sampling_.clear();
  first_sampled_.clear();
  sampling_passes_ = {0};
  num_replaced_ = 0;
}

void StepArrays::Collect(const StepBatch& batch, int padded_sequences,
                         const SlotRequests& requests) {
  Clear();
  planned_ids_ = batch.token_ids;
  for (const PageTableEntry& entry : batch.table_entries) {
    CHECK_LT(entry.block, options_.table_stride[entry.group_idx]);
    table_entries_.push_back(
        {.index = entry.slot * options_.table_stride[entry.group_idx] + entry.block,
         .group = entry.group_idx,
         .page = entry.page});
  }
  std::span<const int32_t> scored_ids = batch.scored_ids;
  for (const SequenceStep& sequence : batch.sequences) {
    AddSequence(sequence);
    AddSampling(sequence, requests.Of(sequence.slot), scored_ids.first(sequence.num_scored));
    scored_ids = scored_ids.subspan(sequence.num_scored);
  }
  CHECK_EQ(planned_ids_.size(), sequence_of_.size());
  two_row_sets_ = options_.split_row_sets && !all_are_outputs_;

  // Padding: sequences without a past, whose entries are not kept and whose outputs nobody reads.
  while (static_cast<int>(planned_.size()) < padded_sequences) {
    SequenceStep padding = batch.sequences[0];
    padding.slot = options_.padding_slot;
    padding.num_cached = 0;
    padding.num_uncertain = 0;
    planned_ids_.resize(planned_ids_.size() + padding.num_rows, 0);
    AddSequence(padding);
    AddSampling(padding, requests.Of(options_.padding_slot), {});
  }
  PlanAttention();
}

void StepArrays::AddSequence(const SequenceStep& sequence) {
  PlannedSequence planned;
  planned.slot = sequence.slot;
  planned.num_cached = sequence.num_cached;
  planned.first_row = static_cast<int32_t>(sequence_of_.size());
  planned.num_rows = sequence.num_rows;
  planned.first_output = static_cast<int32_t>(output_rows_.size());
  planned.num_outputs = sequence.num_outputs;
  planned.num_sampled = sequence.num_sampled();
  all_are_outputs_ &= sequence.num_rows == sequence.num_outputs;
  sequence_of_.resize(sequence_of_.size() + sequence.num_rows,
                      static_cast<int32_t>(planned_.size()));
  for (int32_t row = sequence.num_rows - sequence.num_outputs; row < sequence.num_rows; ++row) {
    output_rows_.push_back(planned.first_row + row);
  }
  planned_.push_back(planned);
  num_uncertain_.push_back(sequence.num_uncertain);
}

void StepArrays::AddSamplingRow(SamplingRow row, int64_t replaced_words) {
  if (num_replaced_ + replaced_words > options_.replaced_capacity) {
    CHECK_LE(replaced_words, options_.replaced_capacity);
    sampling_passes_.push_back(static_cast<int32_t>(sampling_.size()));
    num_replaced_ = 0;
  }
  row.replaced_begin = static_cast<int32_t>(num_replaced_);
  num_replaced_ += replaced_words;
  sampling_.push_back(row);
}

void StepArrays::AddSampling(const SequenceStep& sequence, const SlotRequests::Request& request,
                             std::span<const int32_t> scored_ids) {
  first_sampled_.push_back(static_cast<int32_t>(sampling_.size()));
  const PlannedSequence& planned = planned_.back();
  SamplingRow row;
  row.slot = sequence.slot;
  const auto at_output = [&](int32_t output) {
    row.logits_row = planned.first_output + output;
    row.step_row = output_rows_[row.logits_row];
  };
  for (size_t idx = 0; idx < scored_ids.size(); ++idx) {
    at_output(static_cast<int32_t>(idx));
    row.scored_id = scored_ids[idx];
    AddSamplingRow(row, 0);
    needs_.logprobs = true;
  }
  if (!sequence.samples) return;
  needs_.adjustments |= request.needs.adjustments;
  needs_.logprobs |= request.needs.logprobs;
  needs_.drafts |= sequence.num_drafts > 0;
  row.scored_id = -1;
  row.num_drafts = sequence.num_drafts;
  for (int32_t idx = 0; idx < sequence.num_sampled(); ++idx) {
    at_output(sequence.num_outputs - sequence.num_sampled() + idx);
    row.rows_before = idx;
    AddSamplingRow(row, request.replaced_words());
  }
}

void StepArrays::PlanAttention() {
  for (int group = 0; group < kNumKvGroups; ++group) {
    for (int row_set = 0; row_set < (two_row_sets_ ? kNumRowSets : 1); ++row_set) {
      items_.clear();
      if (options_.geometry[group].num_heads > 0) {  // a layer of this kind
        attention_.clear();
        int max_queries = 1;
        for (const PlannedSequence& planned : planned_) {
          const bool is_outputs = row_set == kOutputRows;
          attention_.push_back(
              {.num_queries = is_outputs ? planned.num_outputs : planned.num_rows,
               .first_position =
                   planned.num_cached + (is_outputs ? planned.num_rows - planned.num_outputs : 0)});
          max_queries = std::max(max_queries, attention_.back().num_queries);
        }
        const int tile_rows = ChooseTileRows(options_.geometry[group], options_.head_dim[group],
                                             max_queries, options_.batch_invariant);
        // Where the sets are one, items of the first serve both.
        tile_rows_[group][row_set] = tile_rows;
        if (!two_row_sets_) tile_rows_[group].fill(tile_rows);
        const auto tile =
            std::find(std::begin(kAttentionTileRows), std::end(kAttentionTileRows), tile_rows) -
            std::begin(kAttentionTileRows);
        PlanAttentionWork(options_.geometry[group], attention_, options_.work[group][tile], items_,
                          num_uncertain_);
      }
      counts_.first_item[group][row_set] = static_cast<int32_t>(planned_items_.size());
      counts_.num_items[group][row_set] = static_cast<int32_t>(items_.size());
      planned_items_.insert(planned_items_.end(), items_.begin(), items_.end());
    }
  }
  counts_.num_table_entries = static_cast<int32_t>(table_entries_.size());
}

StepShape StepArrays::shape() const {
  StepShape shape;
  shape.rows = static_cast<int>(sequence_of_.size());
  shape.sequences = static_cast<int>(planned_.size());
  shape.outputs = static_cast<int>(output_rows_.size());
  shape.sampled = static_cast<int>(sampling_.size());
  shape.two_row_sets = two_row_sets_;
  shape.table_entries = static_cast<int>(table_entries_.size());
  for (int group = 0; group < kNumKvGroups; ++group) {
    shape.items[group] =
        std::max(counts_.num_items[group][kAllRows], counts_.num_items[group][kOutputRows]);
  }
  return shape;
}

int64_t StepArrays::Write(const StepOffsets& offsets, std::byte* to) const {
  std::memcpy(to + offsets.counts, &counts_, sizeof(counts_));
  CopyTo(planned_, to, offsets.planned);
  CopyTo(planned_ids_, to, offsets.planned_ids);
  CopyTo(sequence_of_, to, offsets.sequence_of);
  CopyTo(output_rows_, to, offsets.output_rows);
  CopyTo(sampling_, to, offsets.sampling);
  CopyTo(table_entries_, to, offsets.table_entries);
  CopyTo(planned_items_, to, offsets.planned_items);
  return offsets.planned_items +
         static_cast<int64_t>(planned_items_.size() * sizeof(AttentionItem));
}

}  // namespace lapidary::cuda
