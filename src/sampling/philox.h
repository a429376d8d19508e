// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
//
// A counter-based generator: 128 bits of counter and 64 bits of key give 128 random bits, with no
// state to carry. Any thread on any device computes any number of any stream directly.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace lapidary {

struct PhiloxCounter {
  uint32_t v0, v1, v2, v3;
  friend constexpr bool operator==(const PhiloxCounter&, const PhiloxCounter&) = default;
};

struct PhiloxKey {
  uint32_t k0, k1;
};

inline constexpr int kPhiloxRounds = 10;
inline constexpr uint32_t kPhiloxMul0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMul1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;  // Golden ratio.
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;  // sqrt(3) - 1.

LAPIDARY_HOST_DEVICE constexpr PhiloxCounter Philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxMul0} * counter.v0;
    const uint64_t product1 = uint64_t{kPhiloxMul1} * counter.v2;
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter.v1 ^ key.k0,
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter.v3 ^ key.k1,
               static_cast<uint32_t>(product0)};
    key = {key.k0 + kPhiloxWeyl0, key.k1 + kPhiloxWeyl1};
  }
  return counter;
}

}  // namespace lapidary
