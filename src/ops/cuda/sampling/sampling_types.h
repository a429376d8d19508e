// What sampling reads and writes, as it lies in memory. No CUDA types.
#pragma once

#include <compare>
#include <cstdint>

#include "base/host_device.h"
#include "executor/step_positions.h"

namespace lapidary::cuda {

inline constexpr int kMaxTopLogprobs = 20;

// Two words of a slot's lists.
struct SamplingBias {
  int32_t id = 0;
  float bias = 0.0f;
};
struct SamplingHistory {
  int32_t id = 0;
  int32_t output_count = 0;  // 0: seen in the prompt only
};

// How a slot's tokens are drawn. Lists begin at words of SamplingCall::lists, those of pairs at
// even ones.
struct SamplingSlot {
  uint64_t seed = 0;
  int32_t prompt_len = 0;
  int32_t greedy = 1;
  float inv_temperature = 1.0f;
  int32_t top_k = 0;  // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t num_logprobs = -1;
  int32_t num_score_top = 0;  // beside scores, which always have a logprob
  int32_t has_penalties = 0;
  int32_t suppressed_begin = 0;
  int32_t num_suppressed = 0;
  int32_t allowed_begin = 0;
  int32_t num_allowed = 0;  // 0: every token may be drawn; no id twice
  int32_t biases_begin = 0;
  int32_t num_biases = 0;  // by ascending id
  // Every token said once; SlotState has their number. As long as the sequence can make it.
  int32_t history_begin = 0;
  int32_t history_capacity = 0;
};

// One row to be sampled or scored. A round is the rows of one sequence that are sampled: the last
// token's, and those of its drafts.
struct SamplingRow {
  int32_t logits_row = 0;
  int32_t slot = 0;
  int32_t scored_id = -1;      // only this token's logprob is wanted; nothing is drawn
  int32_t rows_before = 0;     // of the round
  int32_t num_drafts = 0;      // of the round
  int32_t step_row = 0;        // row of the step
  int32_t replaced_begin = 0;  // where this row's replaced values are kept (ReplacedWords)
  int32_t mask_row = -1;       // of SamplingCall::masks; -1: any token may come
  // Filled in by the prepare step.
  int32_t position = 0;  // of the row
  int32_t draft = -1;    // what the round's next row stands for; -1: there is no next row
};

enum class SamplingStatus : int32_t { kOk = 0, kNotFinite = 1, kNothingToDraw = 2 };

struct SampledRow {
  int32_t id = -1;
  SamplingStatus status = SamplingStatus::kOk;
  int32_t num_accepted = 0;  // in a round's first row: rows of the round that count
  float logprob = 0.0f;
  int32_t num_top = 0;
  int32_t top_ids[kMaxTopLogprobs] = {};
  float top_logprobs[kMaxTopLogprobs] = {};
};

// What a step's rows ask for; kernels that nobody needs are not launched.
struct SamplingNeeds {
  bool draws = false;        // some tokens are drawn, not the likeliest taken
  bool adjustments = false;  // penalties, biases or suppressed tokens
  bool logprobs = false;
  bool drafts = false;
  bool masks = false;
  auto operator<=>(const SamplingNeeds&) const = default;
};

// Words of a mask: bit t % 32 of word t / 32 says whether token t may come.
LAPIDARY_HOST_DEVICE constexpr int MaskWords(int vocab_size) { return (vocab_size + 31) / 32; }

// Words that a row needs to keep what its adjustments replace.
constexpr int64_t ReplacedWords(int64_t num_suppressed, int64_t num_biases, int64_t num_history) {
  return 2 + 2 * int64_t{kMaxDrafts} + num_suppressed + num_biases + num_history;
}

}  // namespace lapidary::cuda
