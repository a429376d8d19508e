#include "device/cuda_error.h"
#include "device/device_probe.h"

namespace lapidary {

bool BuiltWithCuda() { return true; }

GpuList ListGpus() {
  int num_gpus = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_gpus);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // an absent GPU must not fail the next CUDA call
    return {.gpus = {}, .problem = cudaGetErrorString(error)};
  }
  if (num_gpus == 0) return {.gpus = {}, .problem = "the driver shows no GPU"};

  GpuList list;
  for (int ordinal = 0; ordinal < num_gpus; ++ordinal) {
    cudaDeviceProp properties;
    LAPIDARY_CUDA_CHECK(cudaGetDeviceProperties(&properties, ordinal));
    list.gpus.push_back({.ordinal = ordinal,
                         .name = properties.name,
                         .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                         .compute_major = properties.major,
                         .compute_minor = properties.minor});
  }
  return list;
}

}  // namespace lapidary
