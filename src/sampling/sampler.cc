#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "sampling/select.h"

namespace lapidary {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A listed race computes one Philox block per token in scalar code, a row race one per four tokens
// in vector code. At 262,144 tokens they cost the same at some 10,000 candidates (measured).
constexpr size_t kMaxListedRace = 8192;

constexpr auto kCountOne = [](int32_t) { return uint64_t{1}; };

Error NotFinite() { return {"the logits hold NaN or infinity", ErrorKind::kFault}; }

}  // namespace

Sampler::Sampler(int32_t vocab_size)
    : vocab_size_(vocab_size), block_max_(NumRowBlocks(vocab_size)), id_buffer_(vocab_size) {
  CHECK_GT(vocab_size, 0);
}

Result<SampledToken> Sampler::Sample(std::span<const float> logits, const SamplingParams& params,
                                     const PenaltyState& history, uint64_t position,
                                     std::span<const uint32_t> allowed) {
  CHECK_EQ(logits.size(), static_cast<size_t>(vocab_size_));
  const std::span<const float> row = Adjust(logits, params, history, allowed);
  const RowScan scan = ScanRow(row, block_max_);
  if (!scan.valid) {
    if (scan.max == -kInfinity) return MakeError("no token may be drawn: every logit is -inf");
    return NotFinite();
  }
  SampledToken token;
  token.id = params.greedy() ? ArgMax(row, scan.max) : Draw(row, scan, params, position);
  if (params.num_logprobs >= 0) {
    RETURN_IF_ERROR(AddLogprobs(logits, params.num_logprobs, token));
  }
  return token;
}

Result<SampledToken> Sampler::Score(std::span<const float> logits, int32_t id, int32_t num_top) {
  CHECK_EQ(logits.size(), static_cast<size_t>(vocab_size_));
  CHECK(id >= 0 && id < vocab_size_) << id;
  SampledToken token;
  token.id = id;
  RETURN_IF_ERROR(AddLogprobs(logits, num_top, token));
  return token;
}

std::span<const float> Sampler::Adjust(std::span<const float> logits, const SamplingParams& params,
                                       const PenaltyState& history,
                                       std::span<const uint32_t> allowed) {
  const bool penalize = params.has_penalties() && !history.entries().empty();
  if (allowed.empty() && params.allowed_tokens.empty() && params.logit_bias.empty() &&
      params.suppress_tokens.empty() && !penalize) {
    return logits;
  }

  if (params.allowed_tokens.empty()) {
    adjusted_.assign(logits.begin(), logits.end());
  } else {
    adjusted_.assign(logits.size(), -kInfinity);
    for (const int32_t id : params.allowed_tokens) {
      CHECK(id >= 0 && id < vocab_size_) << id;
      adjusted_[id] = logits[id];
    }
  }
  if (!allowed.empty()) {
    CHECK_EQ(static_cast<int32_t>(allowed.size()), (vocab_size_ + 31) / 32);
    for (int32_t id = 0; id < vocab_size_; ++id) {
      if ((allowed[id / 32] >> (id % 32) & 1) == 0) adjusted_[id] = -kInfinity;
    }
  }
  for (const int32_t id : params.suppress_tokens) {
    CHECK(id >= 0 && id < vocab_size_) << id;
    adjusted_[id] = -kInfinity;
  }
  for (const LogitBias& entry : params.logit_bias) {
    CHECK(entry.id >= 0 && entry.id < vocab_size_) << entry.id;
    adjusted_[entry.id] += entry.bias;
  }
  if (!penalize) return adjusted_;
  for (const PenaltyState::Entry& entry : history.entries()) {
    CHECK(entry.id >= 0 && entry.id < vocab_size_) << entry.id;
    float& logit = adjusted_[entry.id];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (entry.output_count == 0) continue;
    logit -= params.frequency_penalty * static_cast<float>(entry.output_count);
    logit -= params.presence_penalty;
  }
  return adjusted_;
}

int32_t Sampler::ArgMax(std::span<const float> row, float max) const {
  const auto block = std::find(block_max_.begin(), block_max_.end(), max) - block_max_.begin();
  return static_cast<int32_t>(std::find(row.begin() + block * kRowBlock, row.end(), max) -
                              row.begin());
}

int32_t Sampler::Draw(std::span<const float> row, const RowScan& scan, const SamplingParams& params,
                      uint64_t position) {
  RaceSettings race{.max = scan.max,
                    .inv_temperature = 1.0f / params.temperature,
                    .min_weight = params.min_p,
                    .cutoff = {},
                    .seed = params.seed,
                    .position = position};
  const bool use_top_k = params.top_k > 0 && params.top_k < vocab_size_;
  const bool use_top_p = params.top_p < 1.0f;
  if (use_top_k) race.cutoff = SelectTopK(row, params.top_k);
  if (use_top_p) race.cutoff = SelectTopP(row, race, params.top_p, use_top_k);
  const bool listed = (use_top_k || use_top_p) && candidates_.size() <= kMaxListedRace;
  const int32_t id = listed ? RaceIds(row, candidates_, race) : RaceRow(row, race);
  CHECK_GE(id, 0);  // The likeliest token has weight 1, passes every filter and so can win.
  return id;
}

Cutoff Sampler::SelectTopK(std::span<const float> row, int32_t k) {
  // The k-th largest block maximum bounds the k-th largest logit from below: k blocks have one.
  float bound = -kInfinity;
  if (static_cast<size_t>(k) <= block_max_.size()) {
    scratch_ids_.resize(block_max_.size());
    std::iota(scratch_ids_.begin(), scratch_ids_.end(), 0);
    bound =
        SelectCutoff(block_max_.data(), scratch_ids_, static_cast<uint64_t>(k), kCountOne).logit;
  }
  Collect(row, bound);
  return Cut(row, static_cast<uint64_t>(k), kCountOne);
}

template <typename Measure>
Cutoff Sampler::Cut(std::span<const float> row, uint64_t target, const Measure& measure) {
  scratch_ids_.assign(candidates_.begin(), candidates_.end());
  const Cutoff cutoff = SelectCutoff(row.data(), scratch_ids_, target, measure);
  candidates_ = KeepIds(candidates_, [&](int32_t id) { return cutoff.Keeps(row[id], id); });
  return cutoff;
}

// The nucleus: a token is kept when the mass of the tokens before it is below top_p of the whole.
Cutoff Sampler::SelectTopP(std::span<const float> row, const RaceSettings& race, float top_p,
                           bool has_candidates) {
  weights_.resize(row.size());
  const auto mass_of = [&](int32_t id) { return TokenMass(weights_[id]); };
  uint64_t total = 0;
  if (has_candidates) {
    for (const int32_t id : candidates_) {
      weights_[id] = TokenWeight(row[id], race.max, race.inv_temperature);
      total += mass_of(id);
    }
  } else {
    total = RowMass(row, race.max, race.inv_temperature, weights_.data());
    // Tokens lighter than (1 - top_p) * total / vocabulary hold less than 1 - top_p between them,
    // so the nucleus ends before them. Half of that absorbs the rounding of log and the weights.
    const double total_weight = static_cast<double>(total) / draw::kMassScale;
    const double least = 0.5 * (1.0 - top_p) * total_weight / static_cast<double>(row.size());
    const double bound = race.max + std::log(least) / race.inv_temperature;
    Collect(row, std::nextafter(static_cast<float>(bound), -kInfinity));
  }
  const double share = std::ceil(static_cast<double>(top_p) * static_cast<double>(total));
  const uint64_t target = std::clamp<uint64_t>(static_cast<uint64_t>(share), 1, total);
  return Cut(row, target, mass_of);
}

void Sampler::Collect(std::span<const float> row, float bound) {
  size_t num_found = 0;
  for (size_t block = 0; block < block_max_.size(); ++block) {
    if (block_max_[block] < bound) continue;
    const size_t end = std::min(row.size(), (block + 1) * kRowBlock);
    for (size_t id = block * kRowBlock; id < end; ++id) {  // Branchless: write, then keep or not.
      id_buffer_[num_found] = static_cast<int32_t>(id);
      num_found += row[id] >= bound;
    }
  }
  candidates_ = std::span(id_buffer_).first(num_found);
}

Status Sampler::AddLogprobs(std::span<const float> logits, int32_t num_top, SampledToken& token) {
  const RowScan scan = ScanRow(logits, block_max_);
  if (!scan.valid) return NotFinite();
  const double total = static_cast<double>(RowMass(logits, scan.max, 1.0f)) / draw::kMassScale;
  const double log_total = std::log(total);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(logits[id]) - scan.max - log_total);
  };
  token.logprob = logprob(token.id);
  token.num_top = std::min(num_top, vocab_size_);
  if (token.num_top == 0) return {};

  SelectTopK(logits, token.num_top);
  std::sort(candidates_.begin(), candidates_.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (int32_t rank = 0; rank < token.num_top; ++rank) {
    token.top[rank] = {candidates_[rank], logprob(candidates_[rank])};
  }
  return {};
}

}  // namespace lapidary
