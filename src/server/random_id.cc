#include "server/random_id.h"

#include <fmt/format.h>

#include "base/random_bits.h"

namespace lapidary {

std::string RandomId(std::string_view prefix) {
  return fmt::format("{}{:016x}{:08x}", prefix, RandomBits(), RandomBits() >> 32);
}

}  // namespace lapidary
