#include "executor/cuda/slot_requests.h"

#include <gtest/gtest.h>

#include <bit>
#include <numeric>
#include <random>

#include "executor/cuda/memory_needs.h"

namespace lapidary::cuda {
namespace {

constexpr int kVocab = 1000;
constexpr int kMaxLen = 5000;

SlotBinding Binding(int32_t slot, SamplingParams params, std::vector<int32_t> tokens,
                    int32_t prompt_len, int32_t max_len) {
  SlotBinding binding;
  binding.slot = slot;
  binding.sampling = std::make_shared<SamplingParams>(std::move(params));
  binding.prompt_len = prompt_len;
  binding.max_len = max_len;
  binding.tokens = std::move(tokens);
  return binding;
}

TEST(SlotRequests, ABindingHasItsListsWhereTheSlotSaysTheyAre) {
  SlotRequests requests(4, kVocab, kMaxLen);
  std::vector<SlotBindingRecord> records;
  std::vector<int32_t> words;
  requests.Bind(Binding(1, {.logit_bias = {{2, 1.0f}}}, {}, 3, 10), records, words);
  SamplingParams params;
  params.temperature = 0.5f;
  params.frequency_penalty = 0.5f;
  params.logit_bias = {{9, 1.0f}, {4, 2.0f}, {9, 3.0f}};
  params.suppress_tokens = {7, 1, 7};
  params.allowed_tokens = {8, 3, 8};
  params.num_logprobs = 2;
  params.seed = 77;
  requests.Bind(Binding(2, params, {5, 6, 5, 6, 6}, 3, 10), records, words);
  ASSERT_EQ(records.size(), 2u);
  const SlotBindingRecord& record = records[1];
  const SamplingSlot& slot = record.sampling;
  EXPECT_EQ(record.slot, 2);
  EXPECT_EQ(slot.seed, 77u);
  EXPECT_EQ(slot.inv_temperature, 2.0f);
  EXPECT_EQ(slot.prompt_len, 3);
  EXPECT_EQ(slot.num_logprobs, 2);
  // As the device has them after the words were copied to lists_begin.
  std::vector<int32_t> lists(requests.num_list_words(), -1);
  std::copy_n(words.begin() + record.words_begin, record.num_words,
              lists.begin() + record.lists_begin);
  EXPECT_EQ(slot.biases_begin % 2, 0);
  EXPECT_EQ(slot.num_biases, 3);
  EXPECT_EQ(lists[slot.biases_begin], 4);
  EXPECT_EQ(std::bit_cast<float>(lists[slot.biases_begin + 3]), 1.0f);  // equal ids in their order
  EXPECT_EQ(std::bit_cast<float>(lists[slot.biases_begin + 5]), 3.0f);
  ASSERT_EQ(slot.num_suppressed, 2);
  EXPECT_EQ(lists[slot.suppressed_begin], 1);
  ASSERT_EQ(slot.num_allowed, 2);
  EXPECT_EQ(lists[slot.allowed_begin + 1], 8);
  EXPECT_EQ(slot.history_begin % 2, 0);
  ASSERT_EQ(record.num_history, 2);
  EXPECT_EQ(lists[slot.history_begin], 5);
  EXPECT_EQ(lists[slot.history_begin + 1], 0);  // 5 was in the prompt only
  EXPECT_EQ(lists[slot.history_begin + 2], 6);
  EXPECT_EQ(lists[slot.history_begin + 3], 2);
  EXPECT_EQ(slot.history_capacity, 2 + 5);  // five tokens may still come
  EXPECT_TRUE(requests.Of(2).needs.adjustments && requests.Of(2).needs.logprobs);
  EXPECT_EQ(requests.Of(2).needs.draws, !params.greedy());
  EXPECT_EQ(requests.Of(2).replaced_words(), ReplacedWords(2, 3, 2));
  requests.CountTokens(2, 4);
  EXPECT_EQ(requests.Of(2).max_history, 6);
  requests.CountTokens(2, 4);
  EXPECT_EQ(requests.Of(2).max_history, 7);  // no more than there is room for
}

TEST(SlotRequests, AHistoryNeverNeedsMoreThanTheVocabulary) {
  SlotRequests requests(1, kVocab, kMaxLen);
  std::vector<SlotBindingRecord> records;
  std::vector<int32_t> words;
  requests.Bind(Binding(0, {.presence_penalty = 1.0f}, {1, 2}, 2, 0), records, words);
  EXPECT_EQ(records[0].sampling.history_capacity, kVocab);
  EXPECT_LE(requests.Of(0).replaced_words(), MaxReplacedWords(kVocab));
}

TEST(SlotRequests, ListsOfBoundSlotsNeverOverlapAndMemoryIsUsedAgain) {
  constexpr int kSlots = 8;
  SlotRequests requests(kSlots, kVocab, kMaxLen);
  std::mt19937 random(3);
  std::vector<std::pair<int64_t, int64_t>> held(kSlots);
  int64_t most_held = 0;
  for (int round = 0; round < 2000; ++round) {
    const int32_t slot = static_cast<int32_t>(random() % kSlots);
    SamplingParams params;
    if (random() % 2 == 0) params.repetition_penalty = 1.1f;
    params.suppress_tokens.resize(random() % 20);
    std::iota(params.suppress_tokens.begin(), params.suppress_tokens.end(), 0);
    std::vector<SlotBindingRecord> records;
    std::vector<int32_t> words;
    const std::vector<int32_t> prompt = {1, 2, 3};
    requests.Bind(Binding(slot, params, prompt, 3, 3 + static_cast<int32_t>(random() % 200)),
                  records, words);
    const SamplingSlot& sampling = records[0].sampling;
    held[slot] = {records[0].lists_begin,
                  std::max<int64_t>(sampling.history_begin + 2 * sampling.history_capacity,
                                    records[0].lists_begin + records[0].num_words)};
    int64_t total = 0;
    for (int other = 0; other < kSlots; ++other) {
      total += held[other].second - held[other].first;
      ASSERT_LE(held[other].second, std::max(requests.num_list_words(), held[other].second));
      if (other == slot || held[other].first == held[other].second) continue;
      ASSERT_TRUE(held[slot].second <= held[other].first || held[slot].first >= held[other].second)
          << "slots " << slot << " and " << other;
    }
    most_held = std::max(most_held, total);
  }
  EXPECT_LT(requests.num_list_words(), 3 * most_held);
}

}  // namespace
}  // namespace lapidary::cuda
