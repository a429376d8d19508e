// Device memory of a benchmark.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "device/cuda_error.h"

namespace lapidary {

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t size) : size_(size) {
    void* memory = nullptr;
    LAPIDARY_CUDA_CHECK(cudaMalloc(&memory, std::max<int64_t>(size, 1) * sizeof(T)));
    data_ = static_cast<T*>(memory);
  }
  explicit DeviceArray(const std::vector<T>& values)
      : DeviceArray(static_cast<int64_t>(values.size())) {
    LAPIDARY_CUDA_CHECK(
        cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(DeviceArray&& other) noexcept
      : size_(other.size_), data_(std::exchange(other.data_, nullptr)) {}
  DeviceArray& operator=(DeviceArray&&) = delete;

  T* get() { return data_; }
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  T* data_ = nullptr;
};

}  // namespace lapidary
