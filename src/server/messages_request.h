// /v1/messages, Anthropic's API, in terms of /v1/chat/completions: the request translated, so that
// one parser reads both.
#pragma once

#include "server/api_error.h"

namespace lapidary {

// Also for /v1/messages/count_tokens, whose requests say nothing of max_tokens (`needs_limit`).
ApiStatus MessagesToChat(const OrderedJson& body, bool needs_limit, OrderedJson* chat);

}  // namespace lapidary
