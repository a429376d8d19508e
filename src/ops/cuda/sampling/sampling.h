// Logits to tokens on the device: the sampler of sampling/sampler.h, bit for bit the same draw.
//
// How a sequence's tokens are drawn belongs to its slot and is set once; a step says which rows
// are drawn for which slots. Tokens depend on their row, the settings, the seed and the position
// alone; integer masses and maxima have no order, so neither the grid nor the batch shows in a
// result.
#pragma once

#include <compare>
#include <cstdint>

#include "base/status.h"
#include "executor/step_positions.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/sampling/sampling_scratch.h"
#include "ops/cuda/slot_state.h"

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
static_assert(sizeof(SampledRow) == kSampledRowBytes);

// What a step's rows ask for; kernels that nobody needs are not launched.
struct SamplingNeeds {
  bool adjustments = false;  // penalties, biases or suppressed tokens
  bool logprobs = false;
  bool drafts = false;
  auto operator<=>(const SamplingNeeds&) const = default;
};

// Words that a row needs to keep what its adjustments replace.
constexpr int64_t ReplacedWords(int64_t num_suppressed, int64_t num_biases, int64_t num_history) {
  return 2 + 2 * int64_t{kMaxDrafts} + num_suppressed + num_biases + num_history;
}

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
  const SamplingSlot* slots = nullptr;
  SlotState* states = nullptr;  // by slot
  int32_t* lists = nullptr;     // of all slots
  int32_t* replaced = nullptr;  // scratch: SamplingRow::replaced_begin
  SampledRow* out = nullptr;    // [rows]
  void* scratch = nullptr;      // SamplingScratchBytes(num_logits_rows, vocab_size)
};

inline constexpr int kMaxSampledVocab = 1 << 22;
Status SamplingSupports(int vocab_size);

// Draws and scores. Rounds of one row are accepted, and their slots moved on; rounds with drafts
// wait for all their rows and RunAccept.
void RunSampling(const LaunchContext& context, const SamplingCall& call);
// Once per step with drafts: accepts what was drawn and moves the slots on.
void RunAccept(const LaunchContext& context, const SamplingCall& call);

// A slot that a sequence takes over.
struct SlotBindingRecord {
  int32_t slot = 0;
  int32_t num_history = 0;
  int32_t words_begin = 0;  // of its lists in SlotBindingsCall::words
  int32_t num_words = 0;
  int32_t lists_begin = 0;  // where they go
  int32_t unused = 0;
  SamplingSlot sampling;
};
struct SlotBindingsCall {
  int num_bindings = 0;
  const SlotBindingRecord* bindings = nullptr;
  const int32_t* words = nullptr;
  SamplingSlot* slots = nullptr;
  SlotState* states = nullptr;
  int32_t* lists = nullptr;
};
void RunBindSlots(const LaunchContext& context, const SlotBindingsCall& call);

}  // namespace lapidary::cuda
