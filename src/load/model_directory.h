// From what the user names (a checkpoint directory, or a preset) to a plan.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "model/plan.h"

namespace lapidary {

struct ModelDescription {
  std::string name;  // as the user gave it
  // Set when the name is a directory; a preset has none.
  std::optional<std::filesystem::path> directory;
  Json config;  // its config.json
  ModelPlan plan;

  // What it is called where a path would be too much: the directory's own name, or the preset's.
  std::string ShortName() const;
};

// A directory wins over a preset of the same name.
Result<ModelDescription> DescribeModel(const std::string& model_or_preset);

}  // namespace lapidary
