// Drafts accepted by dice instead of by the target: for timings with random weights, where nothing
// would ever be accepted.
#pragma once

#include <cstdint>
#include <vector>

#include "base/host_device.h"
#include "sampling/draw.h"

namespace lapidary {

enum class SimulatedSchedule {
  kConstant,     // every draft at one rate a, 1 + a + ... + a^K being the mean length
  kMinVariance,  // all drafts up to the mean length, and the one that it cuts at its share
};

// Rates at which draft i is accepted once all before it are, for rounds of `num_drafts` that give
// `accept_length` tokens on average, the target's own counted: in [1, num_drafts + 1].
std::vector<float> SimulatedRates(SimulatedSchedule schedule, double accept_length, int num_drafts);

// Whether the draft that the token of this number is compared with is accepted.
LAPIDARY_HOST_DEVICE inline bool SimulatesAccept(float rate, uint64_t seed, uint64_t draw_number) {
  PhiloxCounter counter = DrawCounter(0, draw_number);
  counter.v3 = 1;  // not a block of any draw
  const uint32_t bits = Philox(counter, DrawKey(seed)).v0;
  return static_cast<float>(bits >> 8) * 0x1p-24f < rate;
}

}  // namespace lapidary
