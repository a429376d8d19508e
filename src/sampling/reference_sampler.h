// For tests: the final distribution worked out the slow way, in double and by sorting everything.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "sampling/sampling_params.h"

namespace lapidary {

// Logits after suppression, biases and penalties, from the plain lists of ids.
inline std::vector<double> ReferenceLogits(std::span<const float> logits,
                                           const SamplingParams& params,
                                           std::span<const int32_t> prompt,
                                           std::span<const int32_t> output) {
  std::vector<double> row(logits.begin(), logits.end());
  for (const int32_t id : params.suppress_tokens) row[id] = -INFINITY;
  for (const LogitBias& entry : params.logit_bias) row[entry.id] += entry.bias;
  for (size_t id = 0; id < row.size(); ++id) {
    const auto in_prompt = std::count(prompt.begin(), prompt.end(), static_cast<int32_t>(id));
    const auto in_output = std::count(output.begin(), output.end(), static_cast<int32_t>(id));
    if (in_prompt + in_output > 0) {
      row[id] =
          row[id] > 0 ? row[id] / params.repetition_penalty : row[id] * params.repetition_penalty;
    }
    row[id] -= static_cast<double>(in_output) * params.frequency_penalty;
    if (in_output > 0) row[id] -= params.presence_penalty;
  }
  return row;
}

// Probability of each id.
inline std::vector<double> ReferenceDistribution(const std::vector<double>& row,
                                                 const SamplingParams& params) {
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return row[a] > row[b]; });
  std::vector<double> probability(row.size(), 0.0);
  if (params.greedy()) {
    probability[order[0]] = 1.0;
    return probability;
  }
  for (size_t rank = 0; rank < order.size(); ++rank) {
    if (params.top_k > 0 && rank >= static_cast<size_t>(params.top_k)) break;
    probability[order[rank]] = std::exp((row[order[rank]] - row[order[0]]) / params.temperature);
  }
  const auto total = [&] { return std::accumulate(probability.begin(), probability.end(), 0.0); };
  const double before_top_p = total();
  double above = 0.0;
  for (const size_t id : order) {
    const double share = probability[id] / before_top_p;
    if (params.top_p < 1.0f && above >= params.top_p) probability[id] = 0.0;
    above += share;
  }
  const double likeliest = probability[order[0]];
  for (double& p : probability) {
    if (p < params.min_p * likeliest) p = 0.0;
  }
  const double whole = total();
  for (double& p : probability) p /= whole;
  return probability;
}

}  // namespace lapidary
