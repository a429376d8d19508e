// The frame all subcommands share: one CLI::App, one way to report errors, stdout kept for results.
//
// A subcommand lives in its own apps/NAME_command.cc, adds its flags in AddNameCommand() and does
// its work in a function that returns Status. Bad input is an Error: main prints its one sentence
// on stderr and exits with 1 (2 for a malformed command line). Everything that is not the result
// goes to stderr.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace lapidary {

class CommandLine {
 public:
  CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Adds `lapidary NAME`; `action` runs after parsing when the user chose it.
  CLI::App* Add(const std::string& name, const std::string& description,
                std::function<Status()> action);

  // Adds `lapidary NAME SUBCOMMAND`: a group, and what belongs to it.
  CLI::App* AddGroup(const std::string& name, const std::string& description);
  CLI::App* AddTo(CLI::App* group, const std::string& name, const std::string& description,
                  std::function<Status()> action);

  // Parses and runs; returns the process exit code.
  int Run(int argc, char** argv);

 private:
  CLI::App app_;
  std::function<Status()> chosen_action_;
};

}  // namespace lapidary
