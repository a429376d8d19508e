#include "server/percents.h"

#include <charconv>

namespace lapidary {

std::string DecodePercents(std::string_view text) {
  std::string decoded;
  for (size_t pos = 0; pos < text.size(); ++pos) {
    unsigned byte = 0;
    const char* digits = text.data() + pos + 1;
    if (text[pos] == '%' && pos + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      decoded += static_cast<char>(byte);
      pos += 2;
    } else {
      decoded += text[pos];
    }
  }
  return decoded;
}

}  // namespace lapidary
