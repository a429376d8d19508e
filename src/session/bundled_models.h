// The models that come with Lapidary, in models/ of its source tree.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace lapidary {

inline constexpr const char* kDefaultModel = "pebble-e";

// For --help of every command that has a default model.
inline constexpr const char* kDefaultModelHelp =
    "Checkpoint directory, GGUF file, or a model of the Hugging Face Hub: OWNER/NAME, a short name "
    "such as e2b:q4_0 (default: the bundled pebble-e, a toy-sized model)";

// models/NAME: in the folder that $LAPIDARY_MODELS_DIR names, as ./lapidary sets it; else of the
// tree that holds the program. An error says where it was looked for.
Result<std::string> FindBundled(std::string_view name);

// Replaces the name of a bundled model ("pebble-moe") by its directory; a directory of that name in
// the current one takes precedence. Anything else stays as it is.
void ResolveBundled(std::string* model);

// The same for commands that run the bundled pebble-e when the user named none.
Status ResolveModel(std::string* model);

}  // namespace lapidary
