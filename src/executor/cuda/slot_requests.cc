#include "executor/cuda/slot_requests.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "ops/cuda/sampling/sampling_slot.h"
#include "sampling/penalty_state.h"

namespace lapidary::cuda {
namespace {

std::vector<int32_t> Distinct(std::vector<int32_t> ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

SamplingSlot SlotOf(const SlotBinding& binding) {
  SamplingSlot slot = binding.sampling ? MakeSamplingSlot(*binding.sampling) : SamplingSlot();
  slot.prompt_len = binding.prompt_len;
  slot.num_score_top = binding.num_score_top;
  return slot;
}

}  // namespace

SlotRequests::SlotRequests(int num_slots, int vocab_size, int max_len)
    : vocab_size_(vocab_size), max_len_(max_len), slots_(num_slots) {}

int32_t SlotRequests::Allocate(int32_t num_words) {
  for (auto it = gaps_.begin(); it != gaps_.end(); ++it) {
    const auto [begin, words] = *it;
    if (words < num_words) continue;
    gaps_.erase(it);
    if (words > num_words) gaps_[begin + num_words] = words - num_words;
    return begin;
  }
  return std::exchange(end_words_, end_words_ + num_words);
}

void SlotRequests::Free(int32_t begin, int32_t num_words) {
  auto next = gaps_.lower_bound(begin);
  if (next != gaps_.end() && begin + num_words == next->first) {
    num_words += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      num_words += before->second;
      gaps_.erase(before);
    }
  }
  if (begin + num_words == end_words_) {
    end_words_ = begin;
  } else {
    gaps_[begin] = num_words;
  }
}

void SlotRequests::Bind(const SlotBinding& binding, std::vector<SlotBindingRecord>& records,
                        std::vector<int32_t>& words) {
  Slot& slot = slots_[binding.slot];
  if (slot.num_words > 0) Free(slot.lists_begin, slot.num_words);
  slot = {};
  slot.request.media = binding.media;
  SlotBindingRecord& record = records.emplace_back();
  record.slot = binding.slot;
  record.sampling = SlotOf(binding);
  record.words_begin = static_cast<int32_t>(words.size());
  if (!binding.sampling) return;

  const SamplingParams& params = *binding.sampling;
  std::vector<LogitBias> biases = params.logit_bias;
  std::stable_sort(biases.begin(), biases.end(),
                   [](const LogitBias& a, const LogitBias& b) { return a.id < b.id; });
  const std::vector<int32_t> suppressed = Distinct(params.suppress_tokens);
  const std::vector<int32_t> allowed = Distinct(params.allowed_tokens);
  PenaltyState history;
  if (params.has_penalties()) {
    const size_t num_prompt = std::min<size_t>(binding.tokens.size(), binding.prompt_len);
    history.AddPrompt(std::span(binding.tokens).first(num_prompt));
    for (const int32_t id : std::span(binding.tokens).subspan(num_prompt)) history.AddOutput(id);
    // Every token to come may be a new one.
    const int32_t max_len = binding.max_len > 0 ? binding.max_len : max_len_;
    const int64_t to_come =
        std::max<int64_t>(0, int64_t{max_len} - static_cast<int64_t>(binding.tokens.size()));
    slot.history_capacity = static_cast<int32_t>(
        std::min<int64_t>(vocab_size_, static_cast<int64_t>(history.entries().size()) + to_come));
  }

  // Pairs first, so that they lie at even words; then single ids.
  for (const LogitBias& bias : biases) {
    words.insert(words.end(), {bias.id, std::bit_cast<int32_t>(bias.bias)});
  }
  words.insert(words.end(), suppressed.begin(), suppressed.end());
  words.insert(words.end(), allowed.begin(), allowed.end());
  if (words.size() % 2 != 0) words.push_back(0);
  const int32_t history_words = static_cast<int32_t>(words.size()) - record.words_begin;
  for (const PenaltyState::Entry& entry : history.entries()) {
    words.insert(words.end(), {entry.id, entry.output_count});
  }
  record.num_words = static_cast<int32_t>(words.size()) - record.words_begin;
  record.num_history = static_cast<int32_t>(history.entries().size());

  slot.num_words = history_words + 2 * slot.history_capacity;
  if (slot.num_words > 0) slot.lists_begin = Allocate(slot.num_words);
  slot.request.num_biases = static_cast<int32_t>(biases.size());
  slot.request.num_suppressed = static_cast<int32_t>(suppressed.size());
  slot.request.max_history = record.num_history;
  slot.request.needs.draws = !params.greedy();
  slot.request.needs.adjustments = !biases.empty() || !suppressed.empty() || params.has_penalties();
  slot.request.needs.logprobs = params.num_logprobs >= 0;
  slot.request.needs.masks = binding.grammar != nullptr;

  record.lists_begin = slot.lists_begin;
  SamplingSlot& sampling = record.sampling;
  sampling.biases_begin = slot.lists_begin;
  sampling.num_biases = slot.request.num_biases;
  sampling.suppressed_begin = sampling.biases_begin + 2 * sampling.num_biases;
  sampling.num_suppressed = slot.request.num_suppressed;
  sampling.allowed_begin = sampling.suppressed_begin + sampling.num_suppressed;
  sampling.num_allowed = static_cast<int32_t>(allowed.size());
  sampling.history_begin = slot.lists_begin + history_words;
  sampling.history_capacity = slot.history_capacity;
}

void SlotRequests::CountTokens(int32_t slot_idx, int32_t num_tokens) {
  Slot& slot = slots_[slot_idx];
  slot.request.max_history = std::min(slot.request.max_history + num_tokens, slot.history_capacity);
}

}  // namespace lapidary::cuda
