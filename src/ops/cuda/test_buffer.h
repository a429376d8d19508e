// Device memory for kernel tests: what is not written stays NaN, what lies beside must stay as it
// was.
#pragma once

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "device/device_info.h"
#include "device/device_memory.h"
#include "device/device_probe.h"
#include "ops/cuda/launch.h"

// A test of kernels needs a GPU that can run them.
#define LAPIDARY_SKIP_WITHOUT_GPU()                                                 \
  do {                                                                              \
    const ::lapidary::GpuList list_ = ::lapidary::ListGpus();                       \
    if (list_.gpus.empty()) GTEST_SKIP() << "no GPU: " << list_.problem;            \
    if (list_.gpus[0].compute_major != 9)                                           \
      GTEST_SKIP() << list_.gpus[0].name << " cannot run kernels built for sm_90a"; \
  } while (false)

namespace lapidary::cuda {

// The GPU of the tests.
inline const DeviceInfo& TestDevice() {
  static const DeviceInfo device = DescribeDevice(0);
  return device;
}
inline LaunchContext TestContext(cudaStream_t stream = nullptr, bool dependent = false) {
  return {.stream = stream, .dependent = dependent, .device = &TestDevice()};
}

template <typename T>
class TestBuffer {
 public:
  explicit TestBuffer(size_t size)
      : size_(size), memory_(static_cast<int64_t>(Bytes() + 2 * kGuardBytes), "a test") {
    Poison();
  }
  explicit TestBuffer(const std::vector<T>& values) : TestBuffer(values.size()) { Upload(values); }

  T* get() { return memory_.template As<T>(kGuardBytes); }
  size_t size() const { return size_; }

  // All ones are NaN in bf16 and in f32.
  void Poison() {
    LAPIDARY_CUDA_CHECK(cudaMemset(memory_.template As<void>(), kGuard, Bytes() + 2 * kGuardBytes));
    LAPIDARY_CUDA_CHECK(cudaMemset(get(), 0xff, Bytes()));
  }
  // The first values; what follows stays as it is. They are there for every stream: a copy from
  // ordinary memory may return before it has arrived, and some streams do not wait for it.
  void Upload(const std::vector<T>& values) {
    ASSERT_LE(values.size(), size_);
    LAPIDARY_CUDA_CHECK(
        cudaMemcpy(get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  }
  std::vector<T> Download() {
    std::vector<T> values(size_);
    LAPIDARY_CUDA_CHECK(cudaMemcpy(values.data(), get(), Bytes(), cudaMemcpyDeviceToHost));
    return values;
  }
  bool GuardsIntact() {
    std::vector<uint8_t> all(Bytes() + 2 * kGuardBytes);
    LAPIDARY_CUDA_CHECK(
        cudaMemcpy(all.data(), memory_.template As<void>(), all.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (all[i] != kGuard || all[all.size() - 1 - i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuardBytes = 1024;
  static constexpr uint8_t kGuard = 0xa5;
  size_t Bytes() const { return size_ * sizeof(T); }

  size_t size_;
  DeviceBuffer memory_;
};

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace lapidary::cuda
