// Logits to tokens on the device: the sampler of sampling/sampler.h, bit for bit the same draw.
//
// Tokens depend on their row, the settings, the seed and the position alone; integer masses and
// maxima have no order, so neither the grid nor the batch shows in a result.
#pragma once

#include <compare>
#include <cstdint>

#include "ops/cuda/launch.h"

namespace lapidary::cuda {

inline constexpr int kMaxTopLogprobs = 20;

// One row to be sampled. Lists are ranges [begin, begin + count) of SamplingLists.
struct SamplingRow {
  uint64_t seed = 0;
  uint64_t position = 0;
  int32_t logits_row = 0;
  int32_t scored_id = -1;   // only this token's logprob is wanted; nothing is drawn
  int32_t slot = 0;         // its last token becomes this row's, if the row is accepted
  int32_t draft = -1;       // what the sequence's next row stands for; -1: there is no next row
  int32_t rows_before = 0;  // of the same sequence in this step: their drafts count as said
  int32_t greedy = 1;
  float inv_temperature = 1.0f;
  int32_t top_k = 0;  // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t num_logprobs = -1;
  int32_t has_penalties = 0;
  int32_t suppress_begin = 0;
  int32_t num_suppressed = 0;
  int32_t allowed_begin = 0;  // into the suppressed ids too: nothing else is drawn
  int32_t num_allowed = 0;    // 0: every token may be; no id twice
  int32_t bias_begin = 0;     // by ascending id
  int32_t num_biases = 0;
  int32_t history_begin = 0;
  int32_t num_history = 0;
  int32_t pending_slot = -1;  // whose last token the history does not hold yet; -1: none
};

struct SamplingBias {
  int32_t id = 0;
  float bias = 0.0f;
};

struct SamplingHistory {
  int32_t id = 0;
  int32_t output_count = 0;  // 0: seen in the prompt only
};

enum class SamplingStatus : int32_t { kOk = 0, kNotFinite = 1, kNothingToDraw = 2 };

struct SampledRow {
  int32_t id = -1;
  SamplingStatus status = SamplingStatus::kOk;
  float logprob = 0.0f;
  int32_t num_top = 0;
  int32_t top_ids[kMaxTopLogprobs] = {};
  float top_logprobs[kMaxTopLogprobs] = {};
};

// What a step's rows ask for; kernels that nobody needs are not launched.
struct SamplingNeeds {
  bool adjustments = false;  // penalties, biases or suppressed tokens
  bool logprobs = false;
  bool drafts = false;
  auto operator<=>(const SamplingNeeds&) const = default;
};

struct SamplingCall {
  int rows = 0;
  // The logits at hand: rows [first, first + num) of the step. Rows of `spec` that read others are
  // left alone, for another call.
  int first_logits_row = 0;
  int num_logits_rows = 0;
  int vocab_size = 0;
  SamplingNeeds needs;
  float* logits = nullptr;            // [num_logits_rows, vocab]; as before once the call is done
  const SamplingRow* spec = nullptr;  // [rows], rows of a sequence in order
  const int32_t* suppressed = nullptr;
  const SamplingBias* biases = nullptr;
  const SamplingHistory* history = nullptr;
  // Scratch beside the lists, of their lengths: the values they replaced.
  float* replaced_suppressed = nullptr;
  float* replaced_biases = nullptr;
  float* replaced_history = nullptr;
  int32_t* last_tokens = nullptr;  // [slots]
  SampledRow* out = nullptr;       // [rows]
  void* scratch = nullptr;         // SamplingScratchBytes(num_logits_rows, vocab_size)
};

int64_t SamplingScratchBytes(int num_logits_rows, int vocab_size);

void RunSampling(const LaunchContext& context, const SamplingCall& call);

}  // namespace lapidary::cuda
