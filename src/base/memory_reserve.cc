#include "base/memory_reserve.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

namespace lapidary {
namespace {

// Small: an allocator that has memory only in pieces still has room for most of them.
constexpr size_t kBlockBytes = size_t{256} << 10;
constexpr size_t kNumBlocks = MemoryReserve::kBytes / kBlockBytes;

std::mutex fill_mutex;
std::array<std::atomic<void*>, kNumBlocks> blocks;
std::atomic<size_t> num_missing{kNumBlocks};

bool ReleaseBlock() {
  for (std::atomic<void*>& block : blocks) {
    void* const released = block.exchange(nullptr);
    if (released == nullptr) continue;
    ++num_missing;
    std::free(released);
    return true;
  }
  return false;
}

// The reserve is empty, but others may give memory back soon. False: they have not for a second.
bool AwaitMemory() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause{2};
  constexpr int kMaxPauses = 500;
  static thread_local Clock::time_point last;
  static thread_local int num_pauses = 0;
  // The last wait was for another allocation.
  if (Clock::now() - last > 20 * kPause) num_pauses = 0;
  if (++num_pauses > kMaxPauses) return false;
  std::this_thread::sleep_for(kPause);
  last = Clock::now();
  return true;
}

// `new` calls this where it finds no memory, and tries again if it returns.
void OnNoMemory() {
  const bool is_vital = ReserveScope::is_open() || std::uncaught_exceptions() > 0;
  if (!is_vital || (!ReleaseBlock() && !AwaitMemory())) throw std::bad_alloc();
}

}  // namespace

thread_local int ReserveScope::depth_ = 0;

bool MemoryReserve::Fill() {
  if (num_missing.load() == 0) return true;
  const std::lock_guard lock(fill_mutex);
  std::set_new_handler(OnNoMemory);
  for (std::atomic<void*>& block : blocks) {
    if (block.load() != nullptr) continue;
    void* const taken = std::malloc(kBlockBytes);
    if (taken == nullptr) return false;
    block.store(taken);
    --num_missing;
  }
  return num_missing.load() == 0;
}

}  // namespace lapidary
