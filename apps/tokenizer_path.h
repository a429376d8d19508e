// MODEL arguments of commands that need only the tokenizer.
#pragma once

#include <filesystem>
#include <string>

namespace lapidary {

// A checkpoint directory holds its tokenizer.json; anything else is taken as that file itself.
inline std::filesystem::path TokenizerPath(const std::string& model) {
  std::error_code ignored;
  const std::filesystem::path path(model);
  return std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
}

inline constexpr char kTokenizerModelHelp[] =
    "A checkpoint directory (with tokenizer.json) or a tokenizer.json file";

}  // namespace lapidary
