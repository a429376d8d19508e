// A block of Q4_K: 256 values in 8 runs, w = (d * scale) * q - (dmin * min), q of 4 bits, scale and
// min of 6.
#pragma once

#include <cstdint>

namespace lapidary {

// Rounding alone would make a run's smallest value q = 0 and its largest q = 15. A smaller squared
// error comes from scales fitted to the codes, of the best among a few ranges.
void QuantiseQ4K(const float* values, uint8_t* block);

}  // namespace lapidary
