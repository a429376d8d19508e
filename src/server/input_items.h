// What GET /v1/responses/{id}/input_items gives: the items of a stored response's input, in pages.
#pragma once

#include <string_view>

#include "server/api_error.h"

namespace lapidary {

// `items`: a list as JSON. `query`: "limit=20&order=desc&after=ID", in any order; each may be left
// out, and without an order the last items come first.
ApiStatus ListInputItems(std::string_view items, std::string_view query, OrderedJson* list);

}  // namespace lapidary
