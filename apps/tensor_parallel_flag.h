// --tensor-parallel-size, also -tp: how many ranks share a model.
#pragma once

#include <CLI/CLI.hpp>

namespace lapidary {

struct TensorParallelFlag {
  int size = 1;

  CLI::Option* AddTo(CLI::App& command);
};

}  // namespace lapidary
