// Owned device and page-locked memory, streams and events.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "device/cuda_error.h"

namespace lapidary::cuda {

// cudaMalloc'ed bytes. A failure says what they were for.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(int64_t num_bytes, const char* purpose);
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        num_bytes_(std::exchange(other.num_bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~DeviceBuffer();

  template <typename T>
  T* As(int64_t byte_offset = 0) const {
    return reinterpret_cast<T*>(data_ + byte_offset);
  }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

// Page-locked host memory, which the device can also read in place.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(int64_t num_bytes, const char* purpose);
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        num_bytes_(std::exchange(other.num_bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~PinnedBuffer();

  template <typename T>
  T* As(int64_t byte_offset = 0) const {
    return reinterpret_cast<T*>(data_ + byte_offset);
  }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

class Stream {
 public:
  Stream() { LAPIDARY_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }
  void Synchronize() const { LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { LAPIDARY_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  void Record(cudaStream_t stream) { LAPIDARY_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void Wait() const { LAPIDARY_CUDA_CHECK(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace lapidary::cuda
