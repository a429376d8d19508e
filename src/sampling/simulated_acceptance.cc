#include "sampling/simulated_acceptance.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace lapidary {
namespace {

double LengthAt(double rate, int num_drafts) {
  double length = 1.0;
  for (int idx = 0; idx < num_drafts; ++idx) length = 1.0 + rate * length;
  return length;
}

}  // namespace

std::vector<float> SimulatedRates(SimulatedSchedule schedule, double accept_length,
                                  int num_drafts) {
  CHECK(accept_length >= 1.0 && accept_length <= num_drafts + 1.0);
  std::vector<float> rates(num_drafts);
  if (schedule == SimulatedSchedule::kMinVariance) {
    for (int idx = 0; idx < num_drafts; ++idx) {
      rates[idx] = static_cast<float>(std::clamp(accept_length - 1.0 - idx, 0.0, 1.0));
    }
    return rates;
  }
  double low = 0.0;
  double high = 1.0;
  for (int round = 0; round < 60; ++round) {
    const double middle = 0.5 * (low + high);
    (LengthAt(middle, num_drafts) < accept_length ? low : high) = middle;
  }
  std::fill(rates.begin(), rates.end(), static_cast<float>(high));
  return rates;
}

}  // namespace lapidary
