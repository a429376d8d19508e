#include "fleet/policy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "executor/simulated/made_up_text.h"

namespace lapidary::fleet {

int RoundRobin::Choose(std::span<const int32_t>, std::span<const int> loads) {
  return static_cast<int>(next_++ % loads.size());
}

int LeastLoad::Choose(std::span<const int32_t>, std::span<const int> loads) {
  const int least = *std::min_element(loads.begin(), loads.end());
  int chosen = 0;
  uint64_t num_equal = 0;
  for (size_t idx = 0; idx < loads.size(); ++idx) {
    if (loads[idx] == least && random_() % ++num_equal == 0) chosen = static_cast<int>(idx);
  }
  return chosen;
}

int PrefixAware::Choose(std::span<const int32_t> prompt, std::span<const int> loads) {
  std::vector<uint64_t> prefixes;
  simulated::TextHash text = simulated::kNoText;
  for (size_t idx = 0; idx < prompt.size(); ++idx) {
    text = simulated::Append(text, prompt[idx]);
    if ((idx + 1) % kBlockTokens == 0) prefixes.push_back(text);
  }
  int chosen = -1;
  for (auto prefix = prefixes.rbegin(); prefix != prefixes.rend() && chosen < 0; ++prefix) {
    const auto found = replicas_.find(*prefix);
    if (found == replicas_.end()) continue;
    chosen = *std::min_element(found->second.begin(), found->second.end(),
                               [&](int32_t a, int32_t b) { return loads[a] < loads[b]; });
  }
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / std::ssize(loads);
  if (chosen < 0 || loads[chosen] > kMostTimes * mean + kMostAbove) {
    chosen = least_load_.Choose(prompt, loads);
  }
  for (const uint64_t prefix : prefixes) {
    std::vector<int32_t>& holders = replicas_[prefix];
    if (std::find(holders.begin(), holders.end(), chosen) == holders.end()) {
      holders.push_back(chosen);
    }
  }
  return chosen;
}

std::vector<std::string> PolicyNames() { return {"round-robin", "least-load", "prefix"}; }

Result<std::unique_ptr<Policy>> MakePolicy(std::string_view name) {
  if (name == "round-robin") return std::unique_ptr<Policy>(std::make_unique<RoundRobin>());
  if (name == "least-load") return std::unique_ptr<Policy>(std::make_unique<LeastLoad>());
  if (name == "prefix") return std::unique_ptr<Policy>(std::make_unique<PrefixAware>());
  return MakeError("'{}' is no policy; there are {}", name, fmt::join(PolicyNames(), ", "));
}

}  // namespace lapidary::fleet
