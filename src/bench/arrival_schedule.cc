#include "bench/arrival_schedule.h"

#include <cmath>
#include <random>

#include "base/check.h"

namespace lapidary::bench {

std::vector<double> MakeRampSchedule(int num_requests, const RampUp& ramp, double burstiness,
                                     uint64_t seed) {
  CHECK_GT(ramp.start_rate, 0.0);
  CHECK_GT(ramp.end_rate, 0.0);
  CHECK_GT(burstiness, 0.0);
  std::vector<double> times(num_requests, 0.0);
  std::mt19937_64 generator(seed);
  const double shape = std::isinf(burstiness) ? 1.0 : burstiness;
  std::gamma_distribution<double> gamma(shape, 1.0 / shape);  // of mean 1
  double now = 0.0;
  for (int idx = 0; idx < num_requests; ++idx) {
    const double share = num_requests > 1 ? static_cast<double>(idx) / (num_requests - 1) : 0.0;
    const double rate = ramp.is_exponential
                            ? ramp.start_rate * std::pow(ramp.end_rate / ramp.start_rate, share)
                            : ramp.start_rate + share * (ramp.end_rate - ramp.start_rate);
    now += (std::isinf(burstiness) ? 1.0 : gamma(generator)) / rate;
    times[idx] = now;
  }
  return times;
}

std::vector<double> MakeArrivalSchedule(int num_requests, double rate, double burstiness,
                                        uint64_t seed) {
  CHECK_GT(rate, 0.0);
  CHECK_GT(burstiness, 0.0);
  std::vector<double> times(num_requests, 0.0);
  if (num_requests == 0 || std::isinf(rate)) return times;
  std::mt19937_64 generator(seed);
  std::gamma_distribution<double> gamma(std::isinf(burstiness) ? 1.0 : burstiness, 1.0);
  double now = 0.0;
  for (double& time : times) {
    now += std::isinf(burstiness) ? 1.0 : gamma(generator);
    time = now;
  }
  if (now == 0.0) return times;  // shapes near 0: every gap rounds to 0
  const double scale = num_requests / rate / now;
  for (double& time : times) time *= scale;
  return times;
}

}  // namespace lapidary::bench
