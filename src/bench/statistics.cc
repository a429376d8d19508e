#include "bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace lapidary::bench {

double Mean(std::span<const double> values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double StandardDeviation(std::span<const double> values) {
  if (values.empty()) return 0.0;
  const double mean = Mean(values);
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

double Percentile(std::span<const double> values, double percent) {
  if (values.empty()) return 0.0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double rank =
      std::clamp(percent, 0.0, 100.0) / 100.0 * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double share = rank - static_cast<double>(below);
  return sorted[below] + share * (sorted[above] - sorted[below]);
}

double Median(std::span<const double> values) { return Percentile(values, 50.0); }

}  // namespace lapidary::bench
