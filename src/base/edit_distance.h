// How far a mistyped word is from one that there is.
#pragma once

#include <cstddef>
#include <string_view>

namespace lapidary {

// Characters to add, drop or change.
size_t EditDistance(std::string_view from, std::string_view to);

}  // namespace lapidary
