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
  const size_t rows = static_cast<size_t>(batch.sequences[0].num_rows);
  const bool drafts_here = rows > 1 && batch.token_ids[1] == kTokenFromDrafter;
  size_t first_row = 0;
  for (const SequenceStep& step : batch.sequences) {
    const bool is_alike = static_cast<size_t>(step.num_rows) == rows &&
                          step.num_outputs == step.num_rows && step.num_sampled() == step.num_rows;
    if (!is_alike) return {};
    if (rows > 1 && (batch.token_ids[first_row + 1] == kTokenFromDrafter) != drafts_here) return {};
    first_row += rows;
  }
  return {static_cast<int>(batch.sequences.size()), static_cast<int>(rows), drafts_here};
}

void StepArrays::Clear() {
  all_are_outputs_ = true;
  counts_ = {};
  planned_.clear();
  num_uncertain_.clear();
  masked_.clear();
  num_masks_ = 0;
  rounds_.clear();
  rounds_with_draft_.clear();
  soft_rows_.clear();
  for (std::vector<int32_t>& keys : keys_ahead_) keys.clear();
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

void StepArrays::Collect(const StepBatch& batch, int padded_sequences, const SlotRequests& requests,
                         int32_t step_number) {
  Clear();
  counts_.step_number = step_number;
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
    const auto& media = requests.Of(sequence.slot).media;
    if (media && sequence.num_rows > 0) AddMedia(sequence, *media);
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
    const size_t first_row = planned_ids_.size();
    planned_ids_.resize(first_row + padding.num_rows, 0);
    if (padding.num_drafts > 0) planned_ids_[first_row + 1] = planned_ids_[1];
    AddSequence(padding);
    AddSampling(padding, requests.Of(options_.padding_slot), {});
  }
  PlanRounds();
  PlanKeysAheadOfOutputs();
  PlanAttention();
}

void StepArrays::AddMedia(const SequenceStep& sequence, const SoftTokenRuns& media) {
  const int32_t first_row = planned_.back().first_row;
  // What is sampled lies behind every prompt.
  if (planned_ids_[first_row] == kTokenFromSlot) return;
  const int32_t end = sequence.num_cached + sequence.num_rows;
  for (const SoftTokenRun& run : media) {
    const int32_t from = std::max(run.position, sequence.num_cached);
    const int32_t to = std::min(run.end(), end);
    if (from >= to) continue;
    const int32_t row = first_row + from - sequence.num_cached;
    soft_rows_.push_back(
        {.first_row = row,
         .num_rows = to - from,
         .values = run.rows->data() + int64_t{from - run.position} * options_.hidden_size});
    std::fill_n(planned_ids_.begin() + row, to - from, options_.media_pad_id);
    if (!run.is_image || !options_.images_see_both_ways) continue;
    CHECK_EQ(to - from, run.length) << "an image is cut";
    std::vector<int32_t>& keys_ahead = keys_ahead_[kAllRows];
    keys_ahead.resize(planned_ids_.size(), 0);
    for (int32_t idx = 0; idx < run.length; ++idx) keys_ahead[row + idx] = run.length - 1 - idx;
  }
}

void StepArrays::PlanKeysAheadOfOutputs() {
  std::vector<int32_t>& of_rows = keys_ahead_[kAllRows];
  if (of_rows.empty()) return;
  of_rows.resize(planned_ids_.size(), 0);
  for (const int32_t row : output_rows_) keys_ahead_[kOutputRows].push_back(of_rows[row]);
}

void StepArrays::PlanRounds() {
  int32_t num_drafts = 0;
  for (size_t idx = 0; idx < planned_.size(); ++idx) {
    const PlannedSequence& planned = planned_[idx];
    if (planned.num_sampled < 2) continue;
    const int32_t first_row = planned.first_row + planned.num_rows - planned.num_sampled;
    if (planned_ids_[first_row + 1] != kTokenFromDrafter) continue;
    CHECK_EQ(planned.num_rows, planned.num_sampled);  // A round goes on where its slot ends.
    rounds_.push_back({.sequence = static_cast<int32_t>(idx),
                       .num_drafts = planned.num_sampled - 1,
                       .first_sampled = first_sampled_[idx],
                       .first_draft = num_drafts});
    num_drafts += planned.num_sampled - 1;
  }
  if (rounds_.empty()) return;
  std::stable_sort(
      rounds_.begin(), rounds_.end(),
      [](const PlannedRound& a, const PlannedRound& b) { return a.num_drafts > b.num_drafts; });
  rounds_with_draft_.assign(rounds_[0].num_drafts, 0);
  for (const PlannedRound& round : rounds_) {
    for (int32_t draft = 0; draft < round.num_drafts; ++draft) ++rounds_with_draft_[draft];
  }
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
  needs_.draws |= request.needs.draws;
  needs_.adjustments |= request.needs.adjustments;
  needs_.logprobs |= request.needs.logprobs;
  needs_.drafts |= sequence.num_drafts > 0;
  if (request.needs.masks) {
    needs_.masks = true;
    masked_.push_back({.sequence = static_cast<int32_t>(planned_.size()) - 1,
                       .slot = sequence.slot,
                       .first_sampled = static_cast<int32_t>(sampling_.size()),
                       .first_mask_row = num_masks_,
                       .num_rows = sequence.num_sampled()});
    num_masks_ += sequence.num_sampled();
  }
  row.scored_id = -1;
  row.num_drafts = sequence.num_drafts;
  for (int32_t idx = 0; idx < sequence.num_sampled(); ++idx) {
    at_output(sequence.num_outputs - sequence.num_sampled() + idx);
    row.rows_before = idx;
    row.mask_row = request.needs.masks ? masked_.back().first_mask_row + idx : -1;
    AddSamplingRow(row, request.replaced_words());
  }
}

void StepArrays::AddAttentionSequences(int row_set) {
  attention_.clear();
  attention_uncertain_.clear();
  if (row_set == kDraftRows) {
    for (const PlannedRound& round : rounds_) {
      attention_.push_back(DraftSequence(0, planned_[round.sequence].num_cached, 0));
      // A round sees one key at least.
      attention_uncertain_.push_back(
          std::min(num_uncertain_[round.sequence], attention_.back().first_position));
    }
    return;
  }
  const bool is_outputs = row_set == kOutputRows;
  for (const PlannedSequence& planned : planned_) {
    attention_.push_back(
        {.first_query = is_outputs ? planned.first_output : planned.first_row,
         .num_queries = is_outputs ? planned.num_outputs : planned.num_rows,
         .first_position =
             planned.num_cached + (is_outputs ? planned.num_rows - planned.num_outputs : 0)});
  }
  attention_uncertain_ = num_uncertain_;
}

void StepArrays::PlanAttentionOf(int group, int row_set) {
  const AttentionGeometry& geometry =
      row_set == kDraftRows ? options_.draft_geometry[group] : options_.geometry[group];
  items_.clear();
  if (geometry.num_heads > 0) {  // a layer of this kind
    AddAttentionSequences(row_set);
    AttentionStepSize step = {.max_queries = 1, .num_sms = options_.num_sms};
    for (const AttentionSequence& sequence : attention_) {
      step.max_queries = std::max(step.max_queries, sequence.num_queries);
      step.all_queries += sequence.num_queries;
    }
    const int tile_rows =
        ChooseTileRows(geometry, options_.head_dim[group], step, options_.batch_invariant);
    tile_rows_[group][row_set] = tile_rows;
    const auto tile =
        std::find(std::begin(kAttentionTileRows), std::end(kAttentionTileRows), tile_rows) -
        std::begin(kAttentionTileRows);
    std::span<const int32_t> keys_ahead;
    if (group == kSlidingGroup && row_set != kDraftRows) keys_ahead = keys_ahead_[row_set];
    PlanAttentionWork(geometry, attention_, options_.work[group][tile], items_,
                      attention_uncertain_, keys_ahead);
  }
  counts_.first_item[group][row_set] = static_cast<int32_t>(planned_items_.size());
  counts_.num_items[group][row_set] = static_cast<int32_t>(items_.size());
  planned_items_.insert(planned_items_.end(), items_.begin(), items_.end());
}

void StepArrays::PlanAttention() {
  for (int group = 0; group < kNumKvGroups; ++group) {
    PlanAttentionOf(group, kAllRows);
    // Where the sets are one, items of the first serve both.
    tile_rows_[group][kOutputRows] = tile_rows_[group][kAllRows];
    if (two_row_sets_) PlanAttentionOf(group, kOutputRows);
    if (!rounds_.empty()) PlanAttentionOf(group, kDraftRows);
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
  shape.rounds = static_cast<int>(rounds_.size());
  shape.sees_ahead = !keys_ahead_[kAllRows].empty();
  shape.table_entries = static_cast<int>(table_entries_.size());
  for (int group = 0; group < kNumKvGroups; ++group) {
    shape.items[group] =
        *std::max_element(std::begin(counts_.num_items[group]), std::end(counts_.num_items[group]));
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
  CopyTo(rounds_, to, offsets.rounds);
  CopyTo(table_entries_, to, offsets.table_entries);
  for (size_t row_set = 0; row_set < keys_ahead_.size(); ++row_set) {
    CopyTo(keys_ahead_[row_set], to, offsets.keys_ahead[row_set]);
  }
  CopyTo(planned_items_, to, offsets.planned_items);
  return offsets.planned_items +
         static_cast<int64_t>(planned_items_.size() * sizeof(AttentionItem));
}

}  // namespace lapidary::cuda
