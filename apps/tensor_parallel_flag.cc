#include "apps/tensor_parallel_flag.h"

#include "model/shard.h"

namespace lapidary {

CLI::Option* TensorParallelFlag::AddTo(CLI::App& command) {
  return command
      .add_option("--tensor-parallel-size", size,
                  "Ranks that share the model, also as -tp; on the CPU they take turns, which is "
                  "no faster, on a GPU there is one")
      ->check(CLI::Range(1, kMaxRanks))
      ->capture_default_str();
}

}  // namespace lapidary
