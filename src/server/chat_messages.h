// Checks the messages and tools of a chat request and reduces them to what templates know.
#pragma once

#include "server/api_error.h"

namespace lapidary {

// Copies the known fields of each message; the rest, client bookkeeping, is dropped.
ApiStatus ReadMessages(const OrderedJson& messages, OrderedJson* checked);

// [{"type": "function", "function": {"name", "description", "parameters"}}]
ApiStatus CheckTools(const OrderedJson& tools);

}  // namespace lapidary
