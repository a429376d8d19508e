// Files of one JSON object a line.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

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

// An Item::Parse(line, where) for each of them; at least one.
template <typename Item>
Result<std::vector<Item>> LoadItems(const std::filesystem::path& path) {
  std::vector<Item> items;
  const auto take = [&](std::string_view line, const std::string& where) -> Status {
    ASSIGN_OR_RETURN(items.emplace_back(), Item::Parse(line, where));
    return {};
  };
  RETURN_IF_ERROR(ForEachLine(path, take));
  if (items.empty()) return MakeError("{} holds no items", path.string());
  return items;
}

}  // namespace lapidary
