#include "bench_kernels/device_copy.h"
#include "device/cuda_error.h"

namespace lapidary {
namespace {

constexpr int kThreads = 256;
constexpr int kVectors = 4;  // per thread, all in flight at once

__global__ void CopyKernel(const uint4* __restrict__ from, uint4* __restrict__ to, int64_t count) {
  const int64_t first = blockIdx.x * int64_t{kThreads * kVectors} + threadIdx.x;
  uint4 values[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (first + i * kThreads < count) values[i] = from[first + i * kThreads];
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (first + i * kThreads < count) to[first + i * kThreads] = values[i];
  }
}

}  // namespace

void CopyOnDevice(cudaStream_t stream, const void* from, void* to, int64_t bytes) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(uint4));
  const int64_t blocks = (count + kThreads * kVectors - 1) / (kThreads * kVectors);
  CopyKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const uint4*>(from), static_cast<uint4*>(to), count);
  LAPIDARY_CUDA_CHECK(cudaGetLastError());
}

}  // namespace lapidary
