// From what the user names (a checkpoint directory, a GGUF file, or a preset) to a plan.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "model/plan.h"

namespace lapidary {

// Whether a config.json says so, at the top or in its text_config.
bool IsQuantised(const Json& config);

struct ModelDescription {
  std::string name;  // as the user gave it
  // Where the weights are, and what is beside them: one of the two, or neither for a preset.
  std::optional<std::filesystem::path> directory;
  std::optional<std::filesystem::path> gguf_file;
  // Where image and audio towers are: the directory, or the mmproj file beside the GGUF file.
  std::optional<std::filesystem::path> towers;
  Json config;  // its config.json; of a GGUF file, what it would say
  ModelPlan plan;

  bool is_preset() const { return !directory && !gguf_file; }
  // By compressed-tensors or modelopt, since a plan was made of it.
  bool is_compressed() const { return directory && IsQuantised(config); }
  // What it is called where a path would be too much: the directory's or the file's own name (of a
  // snapshot in the Hub's cache, the model's there), or the preset's.
  std::string ShortName() const;
};

// A directory or file wins over a preset of the same name.
Result<ModelDescription> DescribeModel(const std::string& model_or_preset);

}  // namespace lapidary
