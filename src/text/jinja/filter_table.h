// How the files with filters register them.
#pragma once

#include <string_view>
#include <unordered_map>

#include "text/jinja/builtins.h"

namespace lapidary::jinja {

using FilterFunction = Result<Value> (*)(const Value&, const Arguments&, Budget&);
using FilterTable = std::unordered_map<std::string_view, FilterFunction>;

void AddSequenceFilters(FilterTable* table);

}  // namespace lapidary::jinja
