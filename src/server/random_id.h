// Names for requests, answers and their parts.
#pragma once

#include <string>
#include <string_view>

namespace lapidary {

// "PREFIX" and 24 random hexadecimal digits.
std::string RandomId(std::string_view prefix);

}  // namespace lapidary
