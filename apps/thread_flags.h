// --threads, --numa and --pin-threads, the same on every command that runs a model.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "load/load_model.h"

namespace lapidary {

struct ThreadFlags {
  int threads = 0;  // 0: one per core
  NumaMode numa = NumaMode::kDistribute;
  bool pin = false;

  std::vector<CLI::Option*> AddTo(CLI::App& command);
  void Fill(LoadOptions& options) const;
};

}  // namespace lapidary
