// The error message for an unknown flag.
#pragma once

#include <string>

#include "apps/command_line.h"

namespace lapidary {

// One sentence: of a flag that llama.cpp or vLLM has, what does the same here; of others, the
// nearest one of the command.
std::string ExplainUnknownFlag(const std::string& flag, const CLI::App& command);

}  // namespace lapidary
