// CUDA calls are for the device that is current in the calling thread.
#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda_error.h"

namespace lapidary::cuda {

// Makes a device the thread's current one as long as this lives.
class DeviceScope {
 public:
  explicit DeviceScope(int ordinal) : ordinal_(ordinal) {
    LAPIDARY_CUDA_CHECK(cudaGetDevice(&before_));
    if (before_ != ordinal_) LAPIDARY_CUDA_CHECK(cudaSetDevice(ordinal_));
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() {
    if (before_ != ordinal_) (void)cudaSetDevice(before_);
  }

 private:
  int ordinal_;
  int before_ = 0;
};

}  // namespace lapidary::cuda
