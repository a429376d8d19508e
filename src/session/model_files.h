// A model that is named but not loaded: what can be known, and refused, before its weights are
// read.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "front/text_model.h"
#include "load/model_directory.h"

namespace lapidary {

struct ModelFiles {
  ModelDescription description;
  std::shared_ptr<const TextModel> text;  // a preset's knows no text

  // `text_directory`: where tokenizer and template are, if not beside or in the model; may be a
  // GGUF file.
  static Result<ModelFiles> Open(const std::string& model_or_preset,
                                 const std::filesystem::path& text_directory = {});
};

}  // namespace lapidary
