// Escapes in URLs.
#pragma once

#include <string>
#include <string_view>

namespace lapidary {

// "%2F" is "/". What is no escape stays as it is.
std::string DecodePercents(std::string_view text);

}  // namespace lapidary
