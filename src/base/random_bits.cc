#include "base/random_bits.h"

#include <random>

namespace lapidary {

uint64_t RandomBits() {
  std::random_device device;  // 32 bits at a time
  const uint64_t high = device();
  return high << 32 | device();
}

}  // namespace lapidary
