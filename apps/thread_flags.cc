#include "apps/thread_flags.h"

#include <map>
#include <string>

namespace lapidary {

std::vector<CLI::Option*> ThreadFlags::AddTo(CLI::App& command) {
  static const std::map<std::string, NumaMode> kModes = {
      {"distribute", NumaMode::kDistribute},
      {"isolate", NumaMode::kIsolate},
      {"off", NumaMode::kOff},
  };
  std::vector<CLI::Option*> options = {
      command.add_option("--threads", threads, "CPU threads; 0: one per core")
          ->check(CLI::Range(0, 1024))
          ->capture_default_str(),
      command
          .add_option_function<std::string>(
              "--numa", [this](const std::string& mode) { numa = kModes.at(mode); },
              "With several NUMA nodes: distribute threads and the weights that are made while "
              "loading over all nodes, isolate them on the one the program starts on, or off "
              "(default: distribute)")
          ->check(CLI::IsMember({"distribute", "isolate", "off"})),
      command.add_flag("--pin-threads", pin,
                       "Bind each CPU thread to a core of its own: for machines that do nothing "
                       "else; slower where others use the cores"),
  };
  for (CLI::Option* option : options) option->group("Model");
  return options;
}

void ThreadFlags::Fill(LoadOptions& options) const {
  options.num_threads = threads;
  options.numa = numa;
  options.pin_threads = pin;
}

}  // namespace lapidary
