// A failing device is an exception: thrown where the call failed, caught once at the engine loop.
//
//   LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(dst, src, num_bytes, cudaMemcpyDefault, stream));
//   Kernel<<<grid, block, 0, stream>>>(params);
//   LAPIDARY_CUDA_CHECK(cudaGetLastError());
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace lapidary {

// what() reads "src/kv/x.cu:12: cudaFoo(a) failed: invalid argument (cudaErrorInvalidValue)".
class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

// Out of device memory: the one device failure that a caller can answer with a smaller request.
class CudaOutOfMemory : public CudaError {
 public:
  using CudaError::CudaError;
};

namespace internal {

// Clears the pending error (so the next, unrelated call is not blamed for it) and throws.
[[noreturn]] void ThrowCudaError(cudaError_t code, const char* call, const char* file, int line);

}  // namespace internal
}  // namespace lapidary

#define LAPIDARY_CUDA_CHECK(call)                                             \
  do {                                                                        \
    if (const cudaError_t code_ = (call); code_ != cudaSuccess) [[unlikely]]  \
      ::lapidary::internal::ThrowCudaError(code_, #call, __FILE__, __LINE__); \
  } while (false)
