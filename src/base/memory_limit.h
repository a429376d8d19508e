// How much memory this process may use.
#pragma once

#include <cstdint>

namespace lapidary {

// The machine's memory, or less where this process or its container is limited; bytes.
int64_t MemoryLimit();

}  // namespace lapidary
