// Sizes and counts as people write them.
#pragma once

#include <CLI/CLI.hpp>

namespace lapidary {

// For CLI::Option::transform: "2GB" is 2e9 bytes, "2GiB" 2^31, "4k" 4000.
inline CLI::AsSizeValue SizeWords() { return CLI::AsSizeValue(/*kb_is_1000=*/true); }

}  // namespace lapidary
