#include "executor/draft_rounds.h"

#include "base/check.h"

namespace lapidary {

const char* DraftSourceName(DraftSource source) {
  switch (source) {
    case DraftSource::kAssistant:
      return "assistant";
    case DraftSource::kForced:
      return "forced";
    case DraftSource::kNgram:
      return "ngram";
  }
  return "assistant";
}

void ShortenRound(int32_t num_drafts, SequenceStep& step) {
  const int32_t num_left_out = step.num_drafts - num_drafts;
  CHECK(num_drafts >= 0 && num_left_out >= 0) << num_drafts << " of " << step.num_drafts;
  step.num_drafts = num_drafts;
  step.num_rows -= num_left_out;
  step.num_outputs -= num_left_out;
}

void ShortenRounds(std::span<const int32_t> num_drafts, StepBatch& batch) {
  CHECK_EQ(num_drafts.size(), batch.sequences.size());
  auto from = batch.token_ids.begin();
  auto to = batch.token_ids.begin();
  for (size_t idx = 0; idx < batch.sequences.size(); ++idx) {
    SequenceStep& step = batch.sequences[idx];
    const auto end = from + step.num_rows;
    if (step.quota) ShortenRound(num_drafts[idx], step);
    to = std::copy_n(from, step.num_rows, to);
    from = end;
  }
  batch.token_ids.erase(to, batch.token_ids.end());
}

}  // namespace lapidary
