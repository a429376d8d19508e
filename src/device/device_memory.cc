#include "device/device_memory.h"

#include <fmt/format.h>

namespace lapidary::cuda {
void ThrowOutOfMemory(cudaError_t code, int64_t num_bytes, const char* purpose,
                      const char* memory_name) {
  cudaGetLastError();  // Not to be blamed on the next call.
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  throw CudaOutOfMemory(
      code, fmt::format("out of {} memory: {:.2f} GB for {} were refused ({}); the GPU has {:.2f} "
                        "of {:.2f} GB free. Ask for less with --gpu-memory, "
                        "--max-num-seqs or --max-num-batched-tokens",
                        memory_name, 1e-9 * static_cast<double>(num_bytes), purpose,
                        cudaGetErrorString(code), 1e-9 * static_cast<double>(free_bytes),
                        1e-9 * static_cast<double>(total_bytes)));
}

}  // namespace lapidary::cuda
