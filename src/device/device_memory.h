// Owned device and page-locked memory, streams and events.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "device/cuda_error.h"

namespace lapidary::cuda {

// Where a buffer lives: how it is taken and given back, and what it is called in an error.
struct DeviceMemory {
  static constexpr const char* kName = "GPU";
  static cudaError_t Allocate(void** memory, int64_t num_bytes) {
    return cudaMalloc(memory, num_bytes);
  }
  static void Free(void* memory) { cudaFree(memory); }
};
// Page-locked, so that the device can also read it in place.
struct PinnedMemory {
  static constexpr const char* kName = "page-locked host";
  static cudaError_t Allocate(void** memory, int64_t num_bytes) {
    return cudaMallocHost(memory, num_bytes);
  }
  static void Free(void* memory) { cudaFreeHost(memory); }
};

// Throws CudaOutOfMemory: what was wanted for what, and how much there is.
[[noreturn]] void ThrowOutOfMemory(cudaError_t code, int64_t num_bytes, const char* purpose,
                                   const char* memory_name);

// Owned bytes. A failure says what they were for.
template <typename Memory>
class Buffer {
 public:
  Buffer() = default;
  Buffer(int64_t num_bytes, const char* purpose) : num_bytes_(num_bytes) {
    if (num_bytes == 0) return;
    const cudaError_t code = Memory::Allocate(reinterpret_cast<void**>(&data_), num_bytes);
    if (code != cudaSuccess) ThrowOutOfMemory(code, num_bytes, purpose, Memory::kName);
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        num_bytes_(std::exchange(other.num_bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) Memory::Free(data_);
  }

  template <typename T>
  T* As(int64_t byte_offset = 0) const {
    return reinterpret_cast<T*>(data_ + byte_offset);
  }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

using DeviceBuffer = Buffer<DeviceMemory>;
using PinnedBuffer = Buffer<PinnedMemory>;

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
  explicit Event(unsigned flags = cudaEventDisableTiming) {
    LAPIDARY_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags));
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  cudaEvent_t get() const { return event_; }
  void Record(cudaStream_t stream) { LAPIDARY_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void Wait() const { LAPIDARY_CUDA_CHECK(cudaEventSynchronize(event_)); }
  // From an earlier one to this; both are over, and made with cudaEventDefault.
  double MillisecondsSince(const Event& earlier) const {
    float ms = 0.0f;
    LAPIDARY_CUDA_CHECK(cudaEventElapsedTime(&ms, earlier.event_, event_));
    return ms;
  }
  // What is queued on the stream from now on waits, on the device.
  void MakeWait(cudaStream_t stream) const {
    LAPIDARY_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace lapidary::cuda
