// What an executor is asked to do in one step, and what it answers: plain data, no device types.
#pragma once

#include <array>
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

// How the output rows of a sequence become tokens.
struct SampleRequest {
  std::shared_ptr<const SamplingParams> params;
  std::shared_ptr<const PenaltyState> history;  // may be null: no penalties asked for
  // The number that output row 0's token draws with (its index in the sequence's output); row i of
  // the step uses first_position + i, so a token depends on its row, the seed and its place alone.
  uint64_t first_position = 0;
};

// The rows of one sequence in a step: a chunk of its prompt, its next token, or that token with
// drafts behind it. Rows sit at positions [num_cached, num_cached + token_ids.size()).
struct SequenceStep {
  int32_t num_cached = 0;  // tokens whose KV the pages hold
  std::vector<int32_t> token_ids;
  // Per KV group. Blocks that hold cached tokens in reach of the rows are read; blocks of the rows
  // themselves are written, except where the table has the scratch page or no entry (rows of a long
  // chunk that nobody will look at again).
  std::array<PageTable, kNumKvGroups> pages;
  std::vector<int32_t> output_rows;       // indices into token_ids, ascending: rows with logits
  std::optional<SampleRequest> sampling;  // tokens for the output rows; absent: logits only
};

struct StepBatch {
  std::vector<SequenceStep> sequences;
  bool return_logits = false;  // hand the output rows' logits back (tests, `lapidary logits`)
};

struct SequenceOutput {
  std::vector<SampledToken> tokens;  // one per output row when sampling was asked for
  std::optional<std::string> error;  // this sequence alone failed (a row without a finite logit)
};

struct StepOutput {
  std::vector<SequenceOutput> sequences;
  std::vector<float> logits;  // [output rows of all sequences in order, vocab]
};

}  // namespace lapidary
