// How much text a step shall draft: what pays, by what was accepted so far and by what a row costs.
//
// Two things are measured: the share of drafts accepted by their place in a round, of forced text
// and of text that repeats by how many of the last tokens had come before (a longer match is more
// often right). A draft is worth its row while it is reached often enough; a match is worth its
// round where it promises more tokens than the assistant does, or than no drafts.
//
// Plain arithmetic without a clock: one thread, any device.
#pragma once

#include <array>
#include <cstdint>

#include "executor/step_batch.h"

namespace lapidary {

class TextPolicy {
 public:
  // For the next step, at most `most` of each source: their numbers, and the least match. A row
  // costs `row_tokens` of the tokens that the step gives; a round of the assistant gives
  // `assistant_tokens` beyond what its rows cost.
  DraftQuota Choose(DraftQuota most, double row_tokens, double assistant_tokens);

  // A round of text; of text that repeats, behind so many tokens that had come before.
  void AddRound(DraftSource source, int32_t match_length, int32_t num_drafts, int32_t num_accepted);

 private:
  struct Rate {
    double tried = 0.0;
    double accepted = 0.0;
  };
  using Rates = std::array<Rate, kMaxDrafts>;  // by place
  struct Worth {
    int32_t num_drafts = 0;
    double tokens = 0.0;  // beyond what the rows cost
  };
  // Matches from so many tokens on count as one.
  static constexpr int32_t kLongMatch = 8;
  static constexpr uint64_t kStepsBetweenTrials = 32;

  // At most so many drafts, at least one.
  static Worth WorthOf(const Rates& rates, int32_t most, double row_tokens);

  Rates forced_;
  std::array<Rates, kLongMatch> ngram_;  // by match length - 1
  int32_t longest_seen_ = 0;             // match
  uint64_t num_steps_ = 0;
};

}  // namespace lapidary
