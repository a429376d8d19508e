// Configurations that ship with the program: the five published checkpoints and the tiny test
// models.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json_fields.h"

namespace lapidary {

// e2b e4b 12b 26b-a4b 31b, then tiny-e tiny-moe tiny-dense.
std::vector<std::string> PresetNames();

bool IsPreset(std::string_view name);

// The preset's config.json. The published ones keep their own architecture and nesting; the tiny
// ones are text-only and turn every feature of their kind on.
Result<Json> PresetConfig(std::string_view name);

}  // namespace lapidary
