#include "engine/draft_policy.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace lapidary {
namespace {

// Rates begin as a good assistant's, as if so many drafts had shown it: what is not known is tried.
constexpr double kFirstRate = 0.7;
constexpr double kFirstWeight = 8.0;
// Beyond so many drafts old ones count half.
constexpr double kMemory = 2048.0;

constexpr int kFirstTrials = 2;      // of every number of drafts, before numbers are compared
constexpr int kMaxAskings = 16;      // for those, where the steps cannot be measured
constexpr double kLeastGain = 0.03;  // Drafts that promise fewer tokens than this are not worth it.
// What a number of drafts that was never measured may cost in steps: the first ones of a kind hold
// work that is done once.
constexpr double kUnknownSteps = 16.0;
constexpr double kNewest = 0.25;  // weight of a step's time against those before it
constexpr double kTrialShare = 0.005;

constexpr double kCollapsedRate = 0.05;
constexpr double kCollapsedAfter = 500.0;  // first drafts

}  // namespace

DraftPolicy::DraftPolicy(int max_drafts, bool adapts) : max_drafts_(max_drafts), adapts_(adapts) {
  CHECK(max_drafts >= 0 && max_drafts <= kMaxDrafts) << max_drafts;
}

DraftPolicy::LoadClass& DraftPolicy::ClassOf(int num_sequences) {
  const size_t idx = std::bit_width(static_cast<unsigned>(std::max(num_sequences, 1)));
  if (classes_.size() <= idx) classes_.resize(idx + 1);
  classes_[idx].costs.resize(max_drafts_ + 1);
  return classes_[idx];
}

double DraftPolicy::AcceptRate(int place) const {
  const Rate& rate = rates_[place];
  return (rate.accepted + kFirstRate * kFirstWeight) / (rate.tried + kFirstWeight);
}

bool DraftPolicy::has_collapsed() const {
  return rates_[0].tried >= kCollapsedAfter &&
         rates_[0].accepted < kCollapsedRate * rates_[0].tried;
}

double DraftPolicy::ExpectedTokens(int num_drafts) const {
  double tokens = 1.0;
  double reached = 1.0;
  for (int place = 0; place < num_drafts; ++place) tokens += reached *= AcceptRate(place);
  return tokens;
}

bool DraftPolicy::IsPromising(const LoadClass& load, int num_drafts) const {
  const double tokens = ExpectedTokens(num_drafts);
  // What is hardly ever accepted cannot pay, whatever a step with it takes.
  if (tokens < 1.0 + kLeastGain) return false;
  // Nor will, most likely, what does not pay where fewer sequences share a step.
  for (ptrdiff_t idx = &load - classes_.data() - 1; idx >= 0; --idx) {
    const std::vector<Cost>& costs = classes_[idx].costs;
    if (costs.empty() || costs[num_drafts].num_measured == 0 || costs[0].num_measured == 0)
      continue;
    return tokens * costs[0].seconds > costs[num_drafts].seconds;
  }
  return true;
}

int DraftPolicy::Choose(int num_sequences) {
  if (!adapts_ || max_drafts_ == 0) return max_drafts_;
  LoadClass& load = ClassOf(num_sequences);
  // At first each in turn, the most drafts before all: they tell most about acceptance.
  for (int num_drafts = max_drafts_; num_drafts >= 0; --num_drafts) {
    Cost& cost = load.costs[num_drafts];
    if (cost.num_measured >= kFirstTrials || cost.num_asked >= kMaxAskings) continue;
    if (num_drafts > 0 && !IsPromising(load, num_drafts)) continue;
    ++cost.num_asked;
    return num_drafts;
  }
  int best = max_drafts_;
  double best_rate = 0.0;  // tokens a second
  for (int num_drafts = 0; num_drafts <= max_drafts_; ++num_drafts) {
    const Cost& cost = load.costs[num_drafts];
    if (cost.num_measured == 0) continue;
    const double rate = ExpectedTokens(num_drafts) / cost.seconds;
    if (rate > best_rate) {
      best = num_drafts;
      best_rate = rate;
    }
  }
  if (best_rate == 0.0) return max_drafts_;

  const int trial = load.next_trial;
  const Cost& cost = load.costs[trial];
  const double lost_seconds = cost.num_measured > 0
                                  ? cost.seconds - ExpectedTokens(trial) / best_rate
                                  : kUnknownSteps * load.costs[best].seconds;
  if (trial == best) {
    load.next_trial = (trial + 1) % (max_drafts_ + 1);
  } else if (lost_seconds <= load.allowance) {
    load.allowance -= lost_seconds;
    load.next_trial = (trial + 1) % (max_drafts_ + 1);
    return trial;
  }
  return best;
}

void DraftPolicy::AddRound(int num_drafts, int num_accepted) {
  for (int place = 0; place < std::min(num_accepted + 1, num_drafts); ++place) {
    Rate& rate = rates_[place];
    if (rate.tried >= kMemory) {
      rate.tried *= 0.5;
      rate.accepted *= 0.5;
    }
    rate.tried += 1.0;
    rate.accepted += place < num_accepted ? 1.0 : 0.0;
  }
}

void DraftPolicy::AddStep(int num_sequences, int num_drafts, double seconds) {
  if (num_drafts > max_drafts_ || seconds <= 0.0) return;
  LoadClass& load = ClassOf(num_sequences);
  Cost& cost = load.costs[num_drafts];
  // The first time of a shape may hold what is done once for it.
  cost.seconds = cost.num_measured < kFirstTrials
                     ? seconds
                     : cost.seconds + kNewest * (seconds - cost.seconds);
  cost.num_measured = std::min(cost.num_measured + 1, kFirstTrials);
  // Not more saved up than one trial may cost.
  load.allowance = std::min(load.allowance + kTrialShare * seconds, kUnknownSteps * cost.seconds);
}

}  // namespace lapidary
