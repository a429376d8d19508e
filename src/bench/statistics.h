// Mean, deviation and percentiles of a list of measurements. All are 0 for an empty list.
#pragma once

#include <span>

namespace lapidary::bench {

double Mean(std::span<const double> values);
// Of the population: divides by the count.
double StandardDeviation(std::span<const double> values);
// `percent` in [0, 100]; between two values, linear (numpy's default).
double Percentile(std::span<const double> values, double percent);
double Median(std::span<const double> values);

}  // namespace lapidary::bench
