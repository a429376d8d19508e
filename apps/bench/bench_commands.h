// The subcommands of `lapidary bench`; bench_command.cc calls each in the order --help shows them.
// Each lives in its own file, bench_NAME.cc.
#pragma once

#include "apps/command_line.h"

namespace lapidary {

void AddBenchServe(CommandLine& command_line, CLI::App* group);
void AddBenchFleet(CommandLine& command_line, CLI::App* group);
void AddBenchKernels(CommandLine& command_line, CLI::App* group);
void AddBenchLatency(CommandLine& command_line, CLI::App* group);
void AddBenchThroughput(CommandLine& command_line, CLI::App* group);

}  // namespace lapidary
