// `lapidary bench`: measurements of a server, of the engine alone and of simulated fleets.
#include "apps/bench/bench_commands.h"
#include "apps/commands.h"

namespace lapidary {

void AddBenchCommand(CommandLine& command_line) {
  CLI::App* group = command_line.AddGroup(
      "bench", "Measure a server, the engine by itself, its CUDA kernels, or a simulated fleet");
  group->footer(
      "tools/compare_bench.py A.json B.json compares two results of the same subcommand.");
  AddBenchServe(command_line, group);
  AddBenchLatency(command_line, group);
  AddBenchThroughput(command_line, group);
  AddBenchKernels(command_line, group);
  AddBenchFleet(command_line, group);
}

}  // namespace lapidary
