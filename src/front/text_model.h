// The text side of a checkpoint: its tokenizer, its chat template and its sampling defaults.
// Whatever a directory or a GGUF file may lack is a Result that says why it is not there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/result.h"
#include "sampling/generation_config.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace lapidary {

struct TextModel {
  Result<Tokenizer> tokenizer;
  Result<ChatTemplate> chat_template;
  GenerationDefaults defaults;

  // A checkpoint directory, or a GGUF file (gguf_text.h).
  // Files that are missing leave an error in their member; a tokenizer or a generation config that
  // is there and cannot be used fails the whole.
  static Result<TextModel> Load(const std::filesystem::path& path);

  // A preset without files: no text, greedy, stopping nowhere. `name` is for the messages.
  static TextModel None(const std::string& name);
};

}  // namespace lapidary
