#include "engine/text_policy.h"

#include <algorithm>

namespace lapidary {
namespace {

// Rates begin as if so many drafts had shown them: what is not known is tried.
constexpr double kFirstRate = 0.7;
constexpr double kFirstWeight = 8.0;
// Beyond so many drafts old ones count half.
constexpr double kMemory = 1024.0;

// Rounds that promise fewer tokens than this are not worth it.
constexpr double kLeastGain = 0.1;

}  // namespace

TextPolicy::Worth TextPolicy::WorthOf(const Rates& rates, int32_t most, double row_tokens) {
  Worth worth;
  double reached = 1.0;
  for (int32_t place = 0; place < most; ++place) {
    const Rate& rate = rates[place];
    reached *= (rate.accepted + kFirstRate * kFirstWeight) / (rate.tried + kFirstWeight);
    if (place > 0 && reached < row_tokens) break;
    worth.num_drafts = place + 1;
    worth.tokens += reached - row_tokens;
  }
  worth.tokens += 1.0;
  return worth;
}

DraftQuota TextPolicy::Choose(DraftQuota most, double row_tokens, double assistant_tokens) {
  DraftQuota quota = most;
  quota.forced = WorthOf(forced_, most.forced, row_tokens).num_drafts;
  // From the longest match that was seen down to the first that promises less.
  const int32_t longest = std::max(longest_seen_, 1);
  int32_t least_match = longest + 1;
  quota.ngram = 0;
  while (most.ngram > 0 && least_match > 1) {
    const Worth worth = WorthOf(ngram_[least_match - 2], most.ngram, row_tokens);
    if (worth.tokens < std::max(assistant_tokens, 1.0 + kLeastGain)) break;
    quota.ngram = std::max(quota.ngram, worth.num_drafts);
    --least_match;
  }
  // Rates grow old: any match is tried now and then.
  if (most.ngram > 0 && ++num_steps_ % kStepsBetweenTrials == 0) {
    least_match = 1;
    quota.ngram = most.ngram;
  }
  quota.least_match = std::max(least_match, most.least_match);
  return quota;
}

void TextPolicy::AddRound(DraftSource source, int32_t match_length, int32_t num_drafts,
                          int32_t num_accepted) {
  match_length = std::clamp(match_length, 1, kLongMatch);
  if (source == DraftSource::kNgram) longest_seen_ = std::max(longest_seen_, match_length);
  Rates& rates = source == DraftSource::kForced ? forced_ : ngram_[match_length - 1];
  for (int32_t place = 0; place < std::min(num_accepted + 1, num_drafts); ++place) {
    Rate& rate = rates[place];
    if (rate.tried >= kMemory) {
      rate.tried *= 0.5;
      rate.accepted *= 0.5;
    }
    rate.tried += 1.0;
    rate.accepted += place < num_accepted ? 1.0 : 0.0;
  }
}

}  // namespace lapidary
