// Every half as a float, for loops that would rather load than convert. 256 KB, of which a model's
// scales use some thousand values.
#pragma once

#include <array>
#include <cstdint>

namespace lapidary {

extern const std::array<float, 1 << 16> kHalfValues;  // by the bits of the half

}  // namespace lapidary
