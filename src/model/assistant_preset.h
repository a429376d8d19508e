// Configurations of drafting assistants: those of the presets, and one for any model.
#pragma once

#include <string_view>

#include "base/json_fields.h"

namespace lapidary {

// config.json of the assistant paired with a preset.
Result<Json> AssistantPresetConfig(std::string_view preset);

// config.json of a tiny assistant for the model of any config.json, with either head.
Result<Json> TinyAssistantConfig(const Json& target, bool ordered);

}  // namespace lapidary
