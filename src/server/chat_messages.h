// Checks the messages and tools of a chat request and reduces them to what templates know.
#pragma once

#include "server/api_error.h"
#include "server/media_parts.h"

namespace lapidary {

// Copies the known fields of each message; the rest, client bookkeeping, is dropped. Pictures,
// sounds and videos become placeholders, and are put behind `media` in their order.
ApiStatus ReadMessages(const OrderedJson& messages, OrderedJson* checked, RequestMedia* media);

// [{"type": "function", "function": {"name", "description", "parameters"}}]
ApiStatus CheckTools(const OrderedJson& tools);

}  // namespace lapidary
