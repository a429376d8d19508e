// F8_E4M3: 1 sign, 4 exponent, 3 fraction bits, no infinities; with all other bits set, NaN.
#pragma once

#include <cstdint>

namespace lapidary {

inline constexpr float kLargestFloat8 = 448.0f;

float Float8ToFloat(uint8_t bits);

// Round to nearest even; what is beyond the largest becomes it, NaN stays NaN.
uint8_t FloatToFloat8(float value);

}  // namespace lapidary
