// Where to cut a row so that the tokens above hold a given measure: a radix select, linear in the
// number of candidates whatever their values, with no sort.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "sampling/draw.h"

namespace lapidary {

// Order-preserving bits of a float that is not NaN; both zeros are one value.
inline uint32_t OrderedBits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31);  // All ones, or 0.
  return bits ^ (sign | 0x80000000u);
}

// Moves the ids that `keep` accepts to the front, in order; branchless, for lists of no pattern.
template <typename Keep>
std::span<int32_t> KeepIds(std::span<int32_t> ids, const Keep& keep) {
  size_t num_kept = 0;
  for (const int32_t id : ids) {
    ids[num_kept] = id;
    num_kept += static_cast<size_t>(keep(id));
  }
  return ids.first(num_kept);
}

// The first candidate, in the order (value descending, id ascending), at which the running sum of
// `measure(id)` reaches `target`: with measure 1, the target-th best; with probability mass, the
// end of the nucleus. Equal values have equal measures. `ids` are candidates in ascending order and
// are used up. The whole sum must reach the target, and the target be at least 1.
template <typename Measure>
Cutoff SelectCutoff(const float* values, std::span<int32_t> ids, uint64_t target,
                    const Measure& measure) {
  // 11 + 11 + 10 bits; the first digit is sign, exponent and two bits of mantissa.
  constexpr int kShifts[] = {21, 10, 0};
  constexpr uint32_t kDigits = 2048;
  std::array<uint64_t, kDigits> sums;
  for (const int shift : kShifts) {
    const uint32_t digit_mask = shift == 0 ? 1023 : kDigits - 1;
    sums.fill(0);
    for (const int32_t id : ids) {
      sums[(OrderedBits(values[id]) >> shift) & digit_mask] += measure(id);
    }
    uint32_t digit = digit_mask;
    while (sums[digit] < target) {
      target -= sums[digit];
      CHECK(digit > 0) << "the candidates hold less than the target";
      --digit;
    }
    ids = KeepIds(ids, [&](int32_t id) {
      return ((OrderedBits(values[id]) >> shift) & digit_mask) == digit;
    });
  }
  // What is left are equal values in ascending order of id.
  const uint64_t each = measure(ids.front());
  const int32_t last = ids[(target - 1) / each];
  return {values[last], last};
}

}  // namespace lapidary
