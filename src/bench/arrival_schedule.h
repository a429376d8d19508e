// When requests are sent.
#pragma once

#include <cstdint>
#include <vector>

namespace lapidary::bench {

// Seconds after the start at which each of `num_requests` is sent, ascending. An infinite `rate`
// (requests per second) sends all at 0. Otherwise gaps follow a gamma distribution of shape
// `burstiness`: 1 is a Poisson process, below 1 is burstier, infinity is a steady beat. The whole
// is stretched so that the last request leaves at num_requests / rate: the offered load is the one
// asked for, whatever the seed.
std::vector<double> MakeArrivalSchedule(int num_requests, double rate, double burstiness,
                                        uint64_t seed);

// Rates that grow from the first request to the last.
struct RampUp {
  bool is_exponential = false;  // else linear
  double start_rate = 1.0;
  double end_rate = 1.0;
};

// As above with a rate that changes from request to request; nothing is stretched.
std::vector<double> MakeRampSchedule(int num_requests, const RampUp& ramp, double burstiness,
                                     uint64_t seed);

}  // namespace lapidary::bench
