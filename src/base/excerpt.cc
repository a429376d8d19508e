#include "base/excerpt.h"

#include <algorithm>

namespace lapidary {

std::string Excerpt(std::string_view text, size_t max_chars) {
  const auto is_inside_character = [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
  };
  const size_t max_bytes = std::min(4 * max_chars, text.size());
  size_t num_chars = 0;
  size_t end = 0;
  for (; end < max_bytes; ++end) {
    if (is_inside_character(text[end])) continue;
    if (num_chars == max_chars) break;
    ++num_chars;
  }
  if (end == text.size()) return std::string(text);
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace lapidary
