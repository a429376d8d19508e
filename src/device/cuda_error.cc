#include "device/cuda_error.h"

#include <fmt/format.h>

namespace lapidary::internal {

void ThrowCudaError(cudaError_t code, const char* call, const char* file, int line) {
  (void)cudaGetLastError();
  const std::string message = fmt::format("{}:{}: {} failed: {} ({})", file, line, call,
                                          cudaGetErrorString(code), cudaGetErrorName(code));
  if (code == cudaErrorMemoryAllocation) throw CudaOutOfMemory(code, message);
  throw CudaError(code, message);
}

}  // namespace lapidary::internal
