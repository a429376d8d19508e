#include "executor/cuda/step_arrays.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace lapidary::cuda {
namespace {

constexpr int64_t kAlignment = 16;

// Hands out aligned places one after the other.
class Placer {
 public:
  template <typename T>
  int64_t Place(int64_t count) {
    const int64_t at = end_;
    end_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_ = 0;
};

template <typename T>
void CopyTo(const std::vector<T>& values, std::byte* base, int64_t offset) {
  if (!values.empty()) std::memcpy(base + offset, values.data(), values.size() * sizeof(T));
}

}  // namespace

StepOffsets LayOutStep(const StepShape& shape) {
  Placer placer;
  StepOffsets offsets;
  offsets.token_ids = placer.Place<int32_t>(shape.rows);
  offsets.slots = placer.Place<int32_t>(shape.rows);
  offsets.positions = placer.Place<int32_t>(shape.rows);
  for (int group = 0; group < kNumKvGroups; ++group) {
    offsets.write_pages[group] = placer.Place<int32_t>(shape.rows);
    offsets.write_slots[group] = placer.Place<int32_t>(shape.rows);
  }
  offsets.output_rows = placer.Place<int32_t>(shape.outputs);
  offsets.sampling = placer.Place<SamplingRow>(shape.sampled);
  offsets.lists = {placer.Place<int32_t>(shape.list_entries[0]),
                   placer.Place<SamplingBias>(shape.list_entries[1]),
                   placer.Place<SamplingHistory>(shape.list_entries[2])};
  for (int group = 0; group < kNumKvGroups; ++group) {
    for (int row_set = 0; row_set < kNumRowSets; ++row_set) {
      if (row_set == kOutputRows && !shape.two_row_sets) {
        offsets.num_items[group][row_set] = offsets.num_items[group][kAllRows];
        offsets.sequences[group][row_set] = offsets.sequences[group][kAllRows];
        offsets.items[group][row_set] = offsets.items[group][kAllRows];
        continue;
      }
      offsets.num_items[group][row_set] = placer.Place<int32_t>(1);
      offsets.sequences[group][row_set] = placer.Place<AttentionSequence>(shape.sequences);
      offsets.items[group][row_set] = placer.Place<AttentionItem>(shape.items[group]);
    }
  }
  for (int group = 0; group < kNumKvGroups; ++group) {
    offsets.page_ids[group] = placer.Place<int32_t>(shape.page_ids[group]);
  }
  offsets.total = placer.end();
  return offsets;
}

StepArrays::StepArrays(const ModelPlan& plan, const KvLayout& layout, const Options& options)
    : plan_(plan), layout_(layout), options_(options) {}

bool StepArrays::IsPlainDecode(const StepBatch& batch) {
  return std::all_of(batch.sequences.begin(), batch.sequences.end(), [](const SequenceStep& step) {
    return step.num_rows == 1 && step.num_outputs == 1 && step.sampling && step.scored_ids.empty();
  });
}

void StepArrays::AddTables(const SequenceStep& sequence,
                           std::array<int32_t, kNumKvGroups>& table_base) {
  for (int group = 0; group < kNumKvGroups; ++group) {
    const PageTable& table = (*sequence.pages)[group];
    table_base[group] = static_cast<int32_t>(page_ids_[group].size()) - table.first_block;
    page_ids_[group].insert(page_ids_[group].end(), table.pages.begin(), table.pages.end());
  }
}

void StepArrays::CollectRows(const StepBatch& batch, int padded_rows) {
  token_ids_ = batch.token_ids;
  slots_.clear();
  positions_.clear();
  output_rows_.clear();
  first_row_.clear();
  first_output_.clear();
  for (int group = 0; group < kNumKvGroups; ++group) {
    write_pages_[group].clear();
    write_slots_[group].clear();
    page_ids_[group].clear();
    for (auto& sequences : sequences_[group]) sequences.clear();
  }
  sampling_.clear();
  first_sampled_.clear();
  suppressed_.clear();
  biases_.clear();
  history_.clear();
  needs_ = {};
  is_decode_ = true;

  for (const SequenceStep& sequence : batch.sequences) {
    const int32_t first_row = static_cast<int32_t>(positions_.size());
    const int32_t first_output = static_cast<int32_t>(output_rows_.size());
    first_row_.push_back(first_row);
    first_output_.push_back(first_output);
    is_decode_ &= sequence.num_rows == sequence.num_outputs;
    std::array<int32_t, kNumKvGroups> table_base{};
    AddTables(sequence, table_base);
    for (int32_t row = 0; row < sequence.num_rows; ++row) {
      const int32_t position = sequence.num_cached + row;
      slots_.push_back(sequence.slot);
      positions_.push_back(position);
      if (row >= sequence.num_rows - sequence.num_outputs) output_rows_.push_back(first_row + row);
      for (int group = 0; group < kNumKvGroups; ++group) {
        const PageTable& table = (*sequence.pages)[group];
        const int32_t block = position / layout_.tokens_per_page[group];
        write_pages_[group].push_back(table.Contains(block) ? table.PageOf(block) : kScratchPage);
        write_slots_[group].push_back(position % layout_.tokens_per_page[group]);
      }
    }
    for (int group = 0; group < kNumKvGroups; ++group) {
      const AttentionSequence all{.first_query = first_row,
                                  .num_queries = sequence.num_rows,
                                  .first_position = sequence.num_cached,
                                  .num_cached = sequence.num_cached,
                                  .first_new = first_row,
                                  .table_base = table_base[group]};
      sequences_[group][kAllRows].push_back(all);
      if (sequence.num_outputs == 0) continue;
      AttentionSequence outputs = all;
      outputs.first_query = first_output;
      outputs.num_queries = sequence.num_outputs;
      outputs.first_position += sequence.num_rows - sequence.num_outputs;
      sequences_[group][kOutputRows].push_back(outputs);
    }
  }
  two_row_sets_ = options_.split_row_sets && !is_decode_;

  // Padding: a sequence of one token each, whose entry is not kept and whose output nobody reads.
  for (int32_t row = static_cast<int32_t>(positions_.size()); row < padded_rows; ++row) {
    CHECK(is_decode_);
    token_ids_.push_back(0);
    slots_.push_back(options_.padding_slot);
    positions_.push_back(0);
    output_rows_.push_back(row);
    for (int group = 0; group < kNumKvGroups; ++group) {
      write_pages_[group].push_back(kScratchPage);
      write_slots_[group].push_back(0);
      sequences_[group][kAllRows].push_back(
          {.first_query = row, .num_queries = 1, .first_new = row});
    }
  }
}

void StepArrays::CollectSampling(const StepBatch& batch, size_t sequence_idx, bool is_pending) {
  const SequenceStep& sequence = batch.sequences[sequence_idx];
  first_sampled_.push_back(static_cast<int32_t>(sampling_.size()));
  const int32_t first_output = first_output_[sequence_idx];
  for (size_t idx = 0; idx < sequence.scored_ids.size(); ++idx) {
    SamplingRow& row = sampling_.emplace_back();
    row.logits_row = first_output + static_cast<int32_t>(idx);
    row.scored_id = sequence.scored_ids[idx];
    row.num_logprobs = sequence.num_score_top;
    needs_.logprobs = true;
  }
  if (!sequence.sampling || sequence.num_outputs == 0) return;
  const SamplingParams& params = *sequence.sampling;
  SamplingRow row;
  row.seed = params.seed;
  row.slot = sequence.slot;
  row.greedy = params.greedy();
  row.inv_temperature = params.greedy() ? 1.0f : 1.0f / params.temperature;
  row.top_k = std::max(params.top_k, 0);
  row.top_p = params.top_p;
  row.min_p = params.min_p;
  row.repetition_penalty = params.repetition_penalty;
  row.presence_penalty = params.presence_penalty;
  row.frequency_penalty = params.frequency_penalty;
  row.num_logprobs = params.num_logprobs;
  row.has_penalties = params.has_penalties();
  row.suppress_begin = static_cast<int32_t>(suppressed_.size());
  row.num_suppressed = static_cast<int32_t>(params.suppress_tokens.size());
  row.bias_begin = static_cast<int32_t>(biases_.size());
  row.num_biases = static_cast<int32_t>(params.logit_bias.size());
  row.history_begin = static_cast<int32_t>(history_.size());
  if (row.has_penalties) {
    if (sequence.history) {
      for (const PenaltyState::Entry& entry : sequence.history->entries()) {
        history_.push_back({entry.id, entry.output_count});
      }
    }
    row.num_history = static_cast<int32_t>(history_.size()) - row.history_begin;
    if (is_pending && sequence.history) row.pending_slot = sequence.slot;
  }
  suppressed_.insert(suppressed_.end(), params.suppress_tokens.begin(),
                     params.suppress_tokens.end());
  row.allowed_begin = static_cast<int32_t>(suppressed_.size());
  std::vector<int32_t> allowed = params.allowed_tokens;
  std::sort(allowed.begin(), allowed.end());
  allowed.erase(std::unique(allowed.begin(), allowed.end()), allowed.end());
  row.num_allowed = static_cast<int32_t>(allowed.size());
  suppressed_.insert(suppressed_.end(), allowed.begin(), allowed.end());
  for (const LogitBias& bias : params.logit_bias) biases_.push_back({bias.id, bias.bias});
  std::stable_sort(biases_.begin() + row.bias_begin, biases_.end(),
                   [](const SamplingBias& a, const SamplingBias& b) { return a.id < b.id; });
  needs_.adjustments |= row.num_suppressed > 0 || row.num_biases > 0 || row.has_penalties;
  needs_.logprobs |= row.num_logprobs >= 0;
  needs_.drafts |= sequence.num_drafts > 0;

  const int32_t end_row = first_row_[sequence_idx] + sequence.num_rows;
  for (int32_t idx = 0; idx <= sequence.num_drafts; ++idx) {
    row.logits_row = first_output + sequence.num_outputs - sequence.num_drafts - 1 + idx;
    row.position = sequence.sample_position + idx;
    row.rows_before = idx;
    row.draft =
        idx == sequence.num_drafts ? -1 : batch.token_ids[end_row - sequence.num_drafts + idx];
    sampling_.push_back(row);
  }
}

void StepArrays::PadSampling() {
  for (size_t row = first_row_.size(); is_decode_ && row < sequences_[0][kAllRows].size(); ++row) {
    SamplingRow& padding = sampling_.emplace_back();
    padding.logits_row =
        static_cast<int32_t>(output_rows_.size() - (sequences_[0][kAllRows].size() - row));
    padding.slot = options_.padding_slot;
  }
}

void StepArrays::PlanAttention() {
  for (int group = 0; group < kNumKvGroups; ++group) {
    const AttentionWorkOptions& work =
        is_decode_ ? options_.decode_work[group] : options_.mixed_work[group];
    for (int row_set = 0; row_set < kNumRowSets; ++row_set) {
      items_[group][row_set].clear();
      if (options_.geometry[group].num_heads == 0) continue;  // no layer of this kind
      if (row_set == kOutputRows && !two_row_sets_) continue;
      if (sequences_[group][row_set].empty()) continue;
      PlanAttentionWork(options_.geometry[group], sequences_[group][row_set], work,
                        items_[group][row_set]);
    }
  }
}

StepShape StepArrays::shape() const {
  StepShape shape;
  shape.rows = static_cast<int>(positions_.size());
  shape.sequences = static_cast<int>(sequences_[0][kAllRows].size());
  shape.outputs = static_cast<int>(output_rows_.size());
  shape.sampled = static_cast<int>(sampling_.size());
  shape.two_row_sets = two_row_sets_;
  shape.list_entries = {static_cast<int>(suppressed_.size()), static_cast<int>(biases_.size()),
                        static_cast<int>(history_.size())};
  for (int group = 0; group < kNumKvGroups; ++group) {
    shape.items[group] = static_cast<int>(
        std::max(items_[group][kAllRows].size(), items_[group][kOutputRows].size()));
    shape.page_ids[group] = static_cast<int>(page_ids_[group].size());
  }
  return shape;
}

int64_t StepArrays::Write(const StepOffsets& offsets, std::byte* to) const {
  CopyTo(token_ids_, to, offsets.token_ids);
  CopyTo(slots_, to, offsets.slots);
  CopyTo(positions_, to, offsets.positions);
  CopyTo(output_rows_, to, offsets.output_rows);
  CopyTo(sampling_, to, offsets.sampling);
  CopyTo(suppressed_, to, offsets.lists[0]);
  CopyTo(biases_, to, offsets.lists[1]);
  CopyTo(history_, to, offsets.lists[2]);
  for (int group = 0; group < kNumKvGroups; ++group) {
    CopyTo(write_pages_[group], to, offsets.write_pages[group]);
    CopyTo(write_slots_[group], to, offsets.write_slots[group]);
    CopyTo(page_ids_[group], to, offsets.page_ids[group]);
    for (int row_set = 0; row_set < (two_row_sets_ ? kNumRowSets : 1); ++row_set) {
      const int32_t num_items = static_cast<int32_t>(items_[group][row_set].size());
      std::memcpy(to + offsets.num_items[group][row_set], &num_items, sizeof(num_items));
      CopyTo(sequences_[group][row_set], to, offsets.sequences[group][row_set]);
      CopyTo(items_[group][row_set], to, offsets.items[group][row_set]);
    }
  }
  constexpr int kLast = kNumKvGroups - 1;
  return offsets.page_ids[kLast] + static_cast<int64_t>(page_ids_[kLast].size() * sizeof(int32_t));
}

}  // namespace lapidary::cuda
