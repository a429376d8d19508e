#include "tensor/float8.h"

#include <cmath>
#include <limits>

namespace lapidary {

float Float8ToFloat(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int fraction = bits & 7;
  float value;
  if (exponent == 15 && fraction == 7) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), -9);
  } else {
    value = std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  }
  return bits >> 7 ? -value : value;
}

uint8_t FloatToFloat8(float value) {
  const int sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::abs(value);
  int code;
  if (std::isnan(value)) {
    code = 0x7f;
  } else if (magnitude >= kLargestFloat8) {
    code = 0x7e;
  } else {
    // Steps of an eighth of the power of two below, from 2^-6 down of 2^-9. Rounding up to the next
    // power of two carries into the exponent.
    const int exponent = magnitude < 0x1p-6f ? -6 : std::ilogb(magnitude);
    const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
    code = (exponent + 6) * 8 + steps;
  }
  return static_cast<uint8_t>(sign | code);
}

}  // namespace lapidary
