// What the shared library shows of itself; every other symbol in it is hidden.
#pragma once

#define LAPIDARY_EXPORT __attribute__((visibility("default")))

// Symbols carry the interface's version; programs just say lapidary::Session. The library's own
// sources use such names for what is inside, and say lapidary::v0 for the interface.
namespace lapidary {
namespace v0 {}
#ifndef LAPIDARY_IMPLEMENTATION
using namespace v0;
#endif
}  // namespace lapidary
