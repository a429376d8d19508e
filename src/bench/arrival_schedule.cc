#include "bench/arrival_schedule.h"

#include <cmath>
#include <random>

#include "base/check.h"

namespace lapidary::bench {

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
