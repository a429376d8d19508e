// From a GGUF file's metadata to what config.json would say.
#pragma once

#include "base/json_fields.h"
#include "gguf/gguf_checkpoint.h"

namespace lapidary {

// The config in the form ParseModelConfig reads, which checks the ranges. What GGUF leaves to the
// tensors (K=V, which dims turn, the vocabulary) is read from them.
Result<Json> ConfigFromGguf(const GgufCheckpoint& checkpoint);
// The same of a drafting assistant.
Result<Json> AssistantConfigFromGguf(const GgufCheckpoint& checkpoint);

}  // namespace lapidary
