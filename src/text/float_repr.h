// Numbers as Python's repr(float) writes them.
#pragma once

#include <string>

namespace lapidary {

// The shortest digits that read back as the same number, laid out as Python does: fixed notation
// for exponents from -4 to 15, else scientific with at least two exponent digits.
std::string FloatRepr(double value);

}  // namespace lapidary
