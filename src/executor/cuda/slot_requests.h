// What requests ask of their slots, in the form that the sampler's kernels read, and where the
// slots' lists lie in the device's memory. Plain host arithmetic, no device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "executor/step_batch.h"
#include "ops/cuda/sampling/sampling.h"

namespace lapidary::cuda {

class SlotRequests {
 public:
  struct Request {
    SamplingNeeds needs;  // of a sampled row; masks: its slot has a grammar
    int32_t num_suppressed = 0;
    int32_t num_biases = 0;
    int32_t max_history = 0;  // entries of the penalty history there may be now
    std::shared_ptr<const SoftTokenRuns> media = {};

    // Of a row's replaced values.
    int64_t replaced_words() const {
      return needs.adjustments ? ReplacedWords(num_suppressed, num_biases, max_history) : 0;
    }
  };

  // `max_len`: tokens of the longest sequence.
  SlotRequests(int num_slots, int vocab_size, int max_len);

  // Adds what the device must be told. Lists of the slot's last request are given up: steps run in
  // order, so nobody reads them any more when the new ones arrive.
  void Bind(const SlotBinding& binding, std::vector<SlotBindingRecord>& records,
            std::vector<int32_t>& words);

  const Request& Of(int32_t slot) const { return slots_[slot].request; }
  // Gives up the images and audio of all slots.
  void ForgetMedia() {
    for (Slot& slot : slots_) slot.request.media = nullptr;
  }
  // So many more tokens may be said by the time the next step is planned.
  void CountTokens(int32_t slot, int32_t num_tokens);

  // Words that the device's lists must have room for.
  int64_t num_list_words() const { return end_words_; }

 private:
  struct Slot {
    Request request;
    int32_t lists_begin = 0;
    int32_t num_words = 0;  // of its lists; 0: none
    int32_t history_capacity = 0;
  };

  // The first gap that is long enough, or a place behind all others.
  int32_t Allocate(int32_t num_words);
  void Free(int32_t begin, int32_t num_words);

  const int vocab_size_;
  const int max_len_;
  std::vector<Slot> slots_;
  std::map<int32_t, int32_t> gaps_;  // begin, words
  int32_t end_words_ = 0;
};

}  // namespace lapidary::cuda
