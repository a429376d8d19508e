// The beginning of a text from outside, for messages that quote it: they stay short, whatever a
// client or a file holds.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lapidary {

inline constexpr size_t kMaxQuotedChars = 200;

// At most `max_chars` characters of UTF-8 text, with "..." for what is left out. Of bytes that are
// no UTF-8, at most 4 * max_chars.
std::string Excerpt(std::string_view text, size_t max_chars = kMaxQuotedChars);

}  // namespace lapidary
