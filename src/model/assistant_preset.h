// Configurations and tensors of the drafting assistants that belong to the presets.
//
// An assistant is a four-layer, query-only decoder: it reads the target's KV and owns none. Only
// what `synth` needs lives here; running assistants comes with drafting.
#pragma once

#include <string_view>
#include <vector>

#include "base/json_fields.h"
#include "model/tensor_specs.h"

namespace lapidary {

// config.json of the assistant paired with a preset.
Result<Json> AssistantConfig(std::string_view preset);

// Its float tensors, under their names in the file. token_ordering (I64, [vocab]) is not among
// them.
std::vector<TensorSpec> AssistantTensors(const Json& config);

}  // namespace lapidary
