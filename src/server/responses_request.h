// /v1/responses in terms of /v1/chat/completions: the request translated, so that one parser reads
// both.
#pragma once

#include <string>

#include "server/api_error.h"

namespace lapidary {

// What of the request is not about generating.
struct ResponsesExtras {
  std::string previous_response_id;  // empty: none
  bool store = true;                 // a later request may go on from the answer
  OrderedJson echoed;                // fields that the response repeats
};

// `chat` gets the request's own messages; those of the previous response are to be put in front,
// behind the instructions (the first `num_instructions` messages), which do not carry over.
ApiStatus ResponsesToChat(const OrderedJson& body, OrderedJson* chat, size_t* num_instructions,
                          ResponsesExtras* extras);

// The input of a request that ResponsesToChat has taken, for whoever asks later what it was: a JSON
// list of items, each with an id and a type.
std::string ResponseInputItems(const OrderedJson& body);

}  // namespace lapidary
