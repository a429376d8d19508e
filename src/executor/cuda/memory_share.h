// How much of a GPU's memory the KV pool gets: plain arithmetic, without CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lapidary::cuda {

// What the driver may still allocate behind the pool, for graphs above all.
inline constexpr int64_t kUnpooledBytes = int64_t{1} << 30;

struct MemoryShare {
  int64_t usable = 0;  // by this process
  int64_t taken = 0;   // of that, before the pool
  int64_t others = 0;  // held by other processes
  int64_t pool = 0;    // left for the pool
};

// `utilization` is this process's share of the whole, whoever else is there: two of 0.4 run beside
// each other. The pool is never more than is free, though. `free_before`: when this process had
// nothing yet. `planned`: what it has taken since by its own account, for others may have given
// memory back meanwhile.
inline MemoryShare ShareMemory(int64_t total, int64_t free_before, int64_t free_now,
                               int64_t planned, double utilization) {
  MemoryShare share;
  share.usable = static_cast<int64_t>(static_cast<double>(total) * utilization);
  share.taken = std::max(free_before - free_now, planned);
  share.others = total - free_before;
  // Where nobody else is, what is not usable is left to the driver.
  const int64_t unpooled = std::min(kUnpooledBytes, total - share.usable);
  share.pool = std::max<int64_t>(0, std::min(share.usable - share.taken, free_now - unpooled));
  return share;
}

}  // namespace lapidary::cuda
