// Suggests a published model that fits this machine, to who runs the bundled toy.
#pragma once

#include <string>

namespace lapidary {

// "; try: ./lapidary chat e2b:q4_0, 3.3 GB": a model that fits this machine's GPU or memory, as the
// program was called; empty where none does.
std::string SuggestedCommand(const std::string& command);

}  // namespace lapidary
