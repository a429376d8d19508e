// A file of flags, as vLLM's --config: YAML, each key a flag's long name without the dashes.
//
//   model: /models/gemma
//   port: 8001
//   served-model-name: [gemma, default]
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/result.h"

namespace lapidary {

// Gives the command's options the file's values, through the same checks as flags; options that
// have a value already (from the command line or the environment) keep it. An error names the file
// and the key at fault, and for an unknown key the nearest one.
Status ApplyConfigFile(const std::string& path, CLI::App& command);

}  // namespace lapidary
