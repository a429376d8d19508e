// MODEL arguments of commands that need only the tokenizer.
#pragma once

#include <filesystem>
#include <string>

#include "apps/named_models.h"
#include "front/gguf_text.h"
#include "gguf/gguf_checkpoint.h"

namespace lapidary {

inline constexpr char kTokenizerModelHelp[] =
    "Checkpoint directory, GGUF file or tokenizer.json (default: the bundled pebble-e)";

// The tokenizer of what the user named; of the bundled pebble-e when that is nothing.
inline Result<Tokenizer> LoadTokenizer(std::string model) {
  const auto found = FindModelOrDefault(&model, {.weights = false, .media = false});
  if (!found.ok()) return found.error();
  if (IsGgufFile(model)) {
    ASSIGN_OR_RETURN(TextModel text, LoadGgufText(model));
    return std::move(text.tokenizer);
  }
  std::error_code ignored;
  const std::filesystem::path path(model);
  return Tokenizer::Load(std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json"
                                                                      : path);
}

}  // namespace lapidary
