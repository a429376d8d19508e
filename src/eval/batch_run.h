// Many requests through one engine, with some of them in flight at any time.
#pragma once

#include <functional>
#include <vector>

#include "engine/engine.h"

namespace lapidary {

// The output ids of every request, the stop token included, in the order of `specs`. At most
// `max_in_flight` are handed to the engine at once, in order; `on_done` is called as each ends, on
// the caller's thread. The first request that is refused or fails ends the whole with its error.
Result<std::vector<std::vector<int32_t>>> RunBatch(Engine& engine, std::vector<SequenceSpec> specs,
                                                   int max_in_flight,
                                                   const std::function<void()>& on_done);

}  // namespace lapidary
