#include "tensor/half_values.h"

#include "tensor/dtype.h"

namespace lapidary {
namespace {

constexpr std::array<float, 1 << 16> MakeHalfValues() {
  std::array<float, 1 << 16> values{};
  for (uint32_t bits = 0; bits < values.size(); ++bits) {
    values[bits] = F16ToFloat(static_cast<uint16_t>(bits));
  }
  return values;
}

}  // namespace

constinit const std::array<float, 1 << 16> kHalfValues = MakeHalfValues();

}  // namespace lapidary
