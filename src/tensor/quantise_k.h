// Blocks of 256 values. Of Q4_K: 8 runs, w = (d * scale) * q - (dmin * min), q of 4 bits, scale and
// min of 6. Of Q6_K: 16 runs, w = (d * scale) * q, q of 6 bits less 32, scale of 8.
#pragma once

#include <cstdint>

namespace lapidary {

// Rounding alone would make a run's smallest value q = 0 and its largest q = 15. A smaller squared
// error comes from scales fitted to the codes, of the best among a few ranges.
void QuantiseQ4K(const float* values, uint8_t* block);

// Of each run the scale that loses least among those that make its extreme about -32.
void QuantiseQ6K(const float* values, uint8_t* block);

}  // namespace lapidary
