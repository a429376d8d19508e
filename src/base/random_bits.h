// Chance from the system, where nothing must be repeatable: seeds nobody chose, ids.
#pragma once

#include <cstdint>

namespace lapidary {

uint64_t RandomBits();  // 64 of them; from any thread

}  // namespace lapidary
