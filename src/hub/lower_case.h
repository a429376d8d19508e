// Names on the Hub are compared without regard to case.
#pragma once

#include <string>
#include <string_view>

namespace lapidary::hub {

// Of ASCII letters alone.
inline std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

}  // namespace lapidary::hub
