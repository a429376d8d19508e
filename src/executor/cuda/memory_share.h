// How much of a GPU's memory the KV pool gets: plain arithmetic, without CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lapidary::cuda {

// What the driver allocates for a process beside its buffers: context, code of kernels, graphs.
inline constexpr int64_t kDriverBytes = int64_t{1} << 30;

// How much of the GPU a process may use, whoever else is there: two of 0.4 run beside each other.
struct MemoryLimit {
  double share = 0.9;  // --gpu-memory-utilization, of the whole
  int64_t cap = 0;     // --gpu-memory, with what the driver takes for it; 0: none
};

// Of a GPU with so much memory, for weights, workspace and the pool.
inline int64_t UsableBytes(int64_t total, const MemoryLimit& limit) {
  const auto share = static_cast<int64_t>(static_cast<double>(total) * limit.share);
  if (limit.cap == 0) return share;
  return std::min(share, std::max<int64_t>(0, limit.cap - kDriverBytes));
}

// The pool is what `allocated`, the bytes of this executor's buffers so far, leave of `usable`, but
// never more than is free. What other processes take or give back meanwhile shows in `free_now`
// alone.
inline int64_t PoolBytes(int64_t total, int64_t usable, int64_t allocated, int64_t free_now) {
  // Where nobody else is, what is not usable is left to the driver.
  const int64_t unpooled = std::min(kDriverBytes, total - usable);
  return std::max<int64_t>(0, std::min(usable - allocated, free_now - unpooled));
}

}  // namespace lapidary::cuda
