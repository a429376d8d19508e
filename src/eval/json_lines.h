// Files of one JSON object a line.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/read_file.h"

namespace lapidary {

// Calls visit(line, where) for every line of the file that is not blank.
template <typename Visit>
Status ForEachLine(const std::filesystem::path& path, Visit visit) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxDataFileBytes));
  int line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    RETURN_IF_ERROR(visit(line, fmt::format("{}: line {}", path.string(), line_number)));
  }
  return {};
}

}  // namespace lapidary
