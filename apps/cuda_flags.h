// Flags that matter on a GPU alone, the same on every command that runs a model.
#pragma once

#include <cstdint>
#include <string>

#include "apps/command_line.h"
#include "executor/cuda/cuda_options.h"

namespace lapidary {

struct CudaFlags {
  double gpu_memory_utilization = 0.9;
  int64_t gpu_memory = 0;  // bytes; 0: no cap
  std::string ple = "device";
  bool batch_invariant = false;
  bool enforce_eager = false;
  bool launch_blocking = false;

  // The options added, so that a command may tie environment variables to them.
  std::vector<CLI::Option*> AddTo(CLI::App& command);
  cuda::CudaExecutorOptions Options() const;
};

}  // namespace lapidary
