// The list of subcommands; main.cc calls each in the order --help shows them.
#pragma once

#include "apps/command_line.h"

namespace lapidary {}  // namespace lapidary
