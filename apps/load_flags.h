// The options of loading (load/load_fields.h) as flags of a command.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "apps/command_line.h"
#include "load/load_fields.h"

namespace lapidary {

class LoadFlags {
 public:
  // All of them, or those that are named. The options added, so that a command may tie environment
  // variables to them.
  std::vector<CLI::Option*> AddTo(CLI::App& command, std::vector<std::string_view> names = {});

  // What was given, once the command line, the environment and a config file are read.
  LoadOptions Options() const;

 private:
  std::vector<std::pair<const LoadField*, CLI::Option*>> given_;
};

}  // namespace lapidary
