#include "apps/cuda_flags.h"

#include "apps/size_words.h"

namespace lapidary {

std::vector<CLI::Option*> CudaFlags::AddTo(CLI::App& command) {
  constexpr const char* kGroup = "GPU";
  std::vector<CLI::Option*> options = {
      command
          .add_option("--gpu-memory-utilization", gpu_memory_utilization,
                      "Share of the GPU's memory that this process may use, whoever else is there; "
                      "what is left of it goes to KV")
          ->check(CLI::Range(0.01, 1.0))
          ->capture_default_str(),
      command
          .add_option("--gpu-memory", gpu_memory,
                      "The most GPU memory that this process may use, all in all: 16GB, 24GiB "
                      "(default: no cap but --gpu-memory-utilization)")
          ->transform(SizeWords())
          ->check(CLI::PositiveNumber),
      command
          .add_option("--ple", ple,
                      "Where the per-layer embedding table (E2B, E4B) lives: on the device, or "
                      "page-locked on the host, where it frees 5 GB of GPU memory")
          ->check(CLI::IsMember({"device", "host"}))
          ->capture_default_str(),
      command.add_flag("--batch-invariant", batch_invariant,
                       "Bitwise the same answers whatever else runs; somewhat slower"),
      command.add_flag("--enforce-eager", enforce_eager, "Launch kernels one by one, no graphs"),
      command.add_flag("--cuda-launch-blocking", launch_blocking,
                       "Wait for every kernel: slow, but a fault names the kernel"),
  };
  for (CLI::Option* option : options) option->group(kGroup);
  return options;
}

cuda::CudaExecutorOptions CudaFlags::Options() const {
  cuda::CudaExecutorOptions options;
  options.memory = {.share = gpu_memory_utilization, .cap = gpu_memory};
  options.ple_placement = ple == "host" ? cuda::PlePlacement::kHost : cuda::PlePlacement::kDevice;
  options.batch_invariant = batch_invariant;
  options.use_graphs = !enforce_eager;
  options.synchronous = launch_blocking;
  return options;
}

}  // namespace lapidary
