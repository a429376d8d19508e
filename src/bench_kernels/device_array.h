// Device memory of a benchmark.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/device_memory.h"

namespace lapidary {

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t size)
      : size_(size), buffer_(std::max<int64_t>(size, 1) * sizeof(T), "a benchmark") {}
  explicit DeviceArray(const std::vector<T>& values)
      : DeviceArray(static_cast<int64_t>(values.size())) {
    LAPIDARY_CUDA_CHECK(
        cudaMemcpy(get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }

  T* get() { return buffer_.template As<T>(); }
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  cuda::DeviceBuffer buffer_;
};

}  // namespace lapidary
