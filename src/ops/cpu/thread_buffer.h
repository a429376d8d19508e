// Memory of one thread that operations use again and again.
#pragma once

#include <hwy/aligned_allocator.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace lapidary::cpu {

// Aligned for vectors, grown to the largest asked for; what it held is lost then.
template <typename T>
class ThreadBuffer {
 public:
  T* Get(int64_t count) {
    if (count > capacity_) {
      buffer_ = hwy::AllocateAligned<T>(static_cast<size_t>(count));
      capacity_ = 0;
      if (buffer_ == nullptr) throw std::bad_alloc();
      capacity_ = count;
    }
    return buffer_.get();
  }

 private:
  hwy::AlignedFreeUniquePtr<T[]> buffer_;
  int64_t capacity_ = 0;
};

}  // namespace lapidary::cpu
