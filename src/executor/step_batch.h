// What an executor is asked to do in one step, and what it answers: plain data, no device types.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/sequence_pages.h"
#include "sampling/penalty_state.h"
#include "sampling/sampler.h"
#include "sampling/sampling_params.h"

namespace lapidary {

// In place of a sequence's first token id: the last token sampled for its slot, which the host may
// not have seen yet.
inline constexpr int32_t kTokenFromSlot = -1;

// The rows of one sequence in a step: a chunk of its prompt, its next token, or that token with
// drafts behind it. They sit at positions [num_cached, num_cached + num_rows); their ids lie in
// StepBatch::token_ids, sequence after sequence.
struct SequenceStep {
  int32_t slot = 0;        // of a running sequence: where the executor keeps its last token
  int32_t num_cached = 0;  // tokens whose KV the pages hold
  int32_t num_rows = 0;
  int32_t num_outputs = 0;  // trailing rows that produce logits
  // Trailing rows that hold drafts; num_outputs is then num_drafts + 1. Row i's token is sampled,
  // and row i + 1 counts only if its draft is that token.
  int32_t num_drafts = 0;

  // Tokens whose logprobs the first scored_ids.size() outputs give, one each: what follows these
  // rows in the prompt is known, and nothing is sampled for them. Sampled outputs come behind, so
  // num_outputs is scored_ids.size(), plus num_drafts + 1 with sampling.
  std::vector<int32_t> scored_ids;
  int32_t num_score_top = 0;  // likeliest tokens to name beside each, at most kMaxLogprobs

  // Blocks that hold cached tokens in reach of the rows are read; blocks of the rows themselves are
  // written, except where the table has the scratch page or no entry (rows of a long chunk that
  // nobody will look at again).
  std::shared_ptr<const PageTables> pages;

  // How outputs become tokens; null: logits only.
  std::shared_ptr<const SamplingParams> sampling;
  std::shared_ptr<PenaltyState> history;  // the executor adds what it samples; null: no penalties
  // The number the first output draws with: its index in the sequence's output. Later ones count
  // on, so a token depends on its row, the seed and its place alone.
  uint64_t sample_position = 0;
};

struct StepBatch {
  std::vector<PageCopy> page_copies;  // done first, in order
  std::vector<int32_t> token_ids;     // rows of all sequences
  std::vector<SequenceStep> sequences;
  bool return_logits = false;  // hand the outputs' logits back (tests, `lapidary logits`)
};

struct SequenceOutput {
  // With sampling: the accepted drafts and the token after them, so one token without drafts.
  std::vector<SampledToken> tokens;
  std::vector<SampledToken> scores;  // of scored_ids: the id, its logprob, the likeliest
  std::optional<std::string> error;  // this sequence alone failed (a row without a finite logit)
};

struct StepOutput {
  std::vector<SequenceOutput> sequences;
  std::vector<float> logits;  // [outputs of all sequences in order, vocab]
};

}  // namespace lapidary
