#include "base/thread_pool.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lapidary {
namespace {

// About 20 us before a worker goes to sleep.
constexpr int kSpins = 2000;

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads <= 0) num_threads = static_cast<int>(std::thread::hardware_concurrency());
  for (int thread_idx = 1; thread_idx < std::max(num_threads, 1); ++thread_idx) {
    workers_.emplace_back([this, thread_idx] { WorkerLoop(thread_idx); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t count, int64_t grain,
                             const std::function<void(int64_t, int64_t, int)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (workers_.empty() || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += std::min(grain, count - begin)) {
      body(begin, begin + std::min(grain, count - begin), 0);
    }
    return;
  }
  body_ = &body;
  count_ = count;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  num_running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    if (num_sleeping_ > 0) wake_.notify_all();
  }
  RunPieces(/*thread_idx=*/0);
  // Every worker must have left this loop before the next one rewrites its description.
  while (num_running_.load(std::memory_order_acquire) > 0) Pause();
  body_ = nullptr;
}

void ThreadPool::RunPieces(int thread_idx) {
  while (true) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    (*body_)(begin, std::min(begin + grain_, count_), thread_idx);
  }
}

void ThreadPool::WorkerLoop(int thread_idx) {
  uint64_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen;
         ++spin) {
      Pause();
    }
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      ++num_sleeping_;
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
      --num_sleeping_;
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stopping_.load()) return;
    RunPieces(thread_idx);
    num_running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace lapidary
