#include "ops/cuda/launch.h"

#include <fmt/format.h>

namespace lapidary::cuda {

void WaitAndName(cudaStream_t stream, const void* kernel) {
  const cudaError_t code = cudaStreamSynchronize(stream);
  if (code == cudaSuccess) return;
  const char* name = "unknown";
  cudaFuncGetName(&name, kernel);
  throw CudaError(code, fmt::format("kernel {} failed: {} ({})", name, cudaGetErrorString(code),
                                    cudaGetErrorName(code)));
}

}  // namespace lapidary::cuda
