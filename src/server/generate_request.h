// vLLM's /inference/v1/generate: tokens in, tokens out. A text completion of token ids, whose
// sampling stands in an object of its own.
#pragma once

#include "server/request_json.h"

namespace lapidary {

// The body as one of /v1/completions. `answer_id` is the request_id, empty where there is none.
ApiStatus GenerateToCompletion(const OrderedJson& body, OrderedJson* completion,
                               std::string* answer_id);

}  // namespace lapidary
