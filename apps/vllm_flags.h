// Flags of other servers that people paste: each gets a sentence instead of "not expected".
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace lapidary {

class VllmFlags {
 public:
  // Adds them without a place in --help.
  void AddTo(CLI::App& command);

  // Says of each that was given why it is not needed; an error when it asks for what is not here.
  Status Check() const;

 private:
  struct Given {
    CLI::Option* option;
    size_t index;  // in the table of them
  };
  std::vector<Given> given_;
  std::vector<std::string> ignored_values_;
};

}  // namespace lapidary
