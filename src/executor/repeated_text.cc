#include "executor/repeated_text.h"

#include <algorithm>
#include <bit>

namespace lapidary {
namespace {

constexpr size_t kLeastChains = 256;

}  // namespace

void RepeatedText::Assign(std::span<const int32_t> tokens) {
  tokens_.assign(tokens.begin(), tokens.end());
  Rechain();
}

void RepeatedText::Append(int32_t token) {
  tokens_.push_back(token);
  if (tokens_.size() > latest_.size()) return Rechain();
  before_.push_back(-1);
  Chain(size() - 1);
}

void RepeatedText::Rechain() {
  // Half empty after it, so that it happens seldom.
  latest_.assign(std::max(kLeastChains, std::bit_ceil(tokens_.size() + 1)), -1);
  before_.assign(tokens_.size(), -1);
  for (int32_t last = 0; last < size(); ++last) Chain(last);
}

uint32_t RepeatedText::ChainOf(int32_t last) const {
  uint64_t hash = 0;
  for (int32_t back = 0; back < lengths_.min; ++back) {
    hash = (hash ^ static_cast<uint32_t>(tokens_[last - back])) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return static_cast<uint32_t>(hash & (latest_.size() - 1));
}

void RepeatedText::Chain(int32_t last) {
  if (last + 1 < lengths_.min) return;
  int32_t& latest = latest_[ChainOf(last)];
  before_[last] = latest;
  latest = last;
}

int32_t RepeatedText::MatchAt(int32_t last) const {
  const int32_t most = std::min(lengths_.max, last + 1);
  int32_t length = 0;
  while (length < most && tokens_[last - length] == tokens_[size() - 1 - length]) ++length;
  return length;
}

RepeatedText::Proposal RepeatedText::Propose(int32_t max_tokens, int32_t least_match) const {
  if (size() <= lengths_.min || max_tokens <= 0) return {};
  int32_t best = -1;
  int32_t best_length = std::max(lengths_.min, std::min(least_match, lengths_.max)) - 1;
  int num_tried = 0;
  for (int32_t last = before_.back(); last >= 0 && num_tried < kMostTried; ++num_tried) {
    const int32_t length = MatchAt(last);
    if (length > best_length) {
      best = last;
      best_length = length;
    }
    if (length == lengths_.max) break;
    last = before_[last];
  }
  if (best < 0) return {};
  Proposal proposal{.match_length = best_length};
  // Where the repetition reaches the end it goes on with itself.
  for (int32_t idx = 0; idx < max_tokens; ++idx) {
    const int32_t from = best + 1 + idx;
    proposal.tokens.push_back(from < size() ? tokens_[from] : proposal.tokens[from - size()]);
  }
  return proposal;
}

}  // namespace lapidary
