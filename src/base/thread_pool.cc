#include "base/thread_pool.h"

#include <algorithm>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lapidary {
namespace {

// About 20 us before a worker goes to sleep, and before a waiting caller lets others run.
constexpr int kSpins = 2000;

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads)
    : ThreadPool(ThreadPlacement{
          .num_threads = num_threads > 0 ? num_threads
                                         : static_cast<int>(std::thread::hardware_concurrency())}) {
}

ThreadPool::ThreadPool(const ThreadPlacement& placement)
    : placement_(placement), shares_(std::make_unique<Share[]>(placement.num_shares)) {
  const int num_threads = std::max(placement.num_threads, 1);
  for (int share = 0; share <= placement.num_shares; ++share) {
    threads_before_.push_back(static_cast<int>(
        std::count_if(placement.share_of_thread.begin(), placement.share_of_thread.end(),
                      [&](int of_thread) { return of_thread < share; })));
  }
  threads_before_.back() = num_threads;
  for (int thread_idx = 1; thread_idx < num_threads; ++thread_idx) {
    workers_.emplace_back([this, thread_idx] { WorkerLoop(thread_idx); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
    state_.fetch_add(kLoopStep);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::BindCaller() const {
  if (!placement_.thread_cpus.empty()) BindThisThread(placement_.thread_cpus[0]);
}

// Shares begin at multiples of the grain, as pieces do.
void ThreadPool::DealOut(int64_t count) {
  int64_t begin = 0;
  for (int share = 0; share < placement_.num_shares; ++share) {
    const int64_t part = count * threads_before_[share + 1] / num_threads();
    const int64_t end = std::min((part + grain_ - 1) / grain_ * grain_, count);
    shares_[share].next.store(begin, std::memory_order_relaxed);
    shares_[share].end = end;
    begin = end;
  }
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
  grain_ = grain;
  DealOut(count);
  // The last loop is closed and empty, so the next number with no flag opens this one.
  const uint64_t loop = (state_.load(std::memory_order_relaxed) / kLoopStep + 1) * kLoopStep;
  state_.store(loop, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    if (num_sleeping_ > 0) wake_.notify_all();
  }
  RunPieces(/*thread_idx=*/0);
  state_.fetch_or(kClosed, std::memory_order_acq_rel);
  for (int spin = 0; (state_.load(std::memory_order_acquire) & kInsideMask) != 0; ++spin) {
    if (spin < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();  // The worker inside may be waiting for this very core.
    }
  }
  body_ = nullptr;
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::KeepFailure() {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::current_exception();
  for (int share = 0; share < placement_.num_shares; ++share) {
    shares_[share].next.store(shares_[share].end, std::memory_order_relaxed);
  }
}

void ThreadPool::RunPieces(int thread_idx) try {
  const int num_shares = placement_.num_shares;
  const int own = num_shares == 1 ? 0 : placement_.share_of_thread[thread_idx];
  for (int idx = 0; idx < num_shares; ++idx) {
    Share& share = shares_[(own + idx) % num_shares];
    while (true) {
      const int64_t begin = share.next.fetch_add(grain_, std::memory_order_relaxed);
      if (begin >= share.end) break;
      (*body_)(begin, std::min(begin + grain_, share.end), thread_idx);
    }
  }
} catch (...) {
  KeepFailure();
}

void ThreadPool::WorkerLoop(int thread_idx) {
  if (!placement_.thread_cpus.empty()) BindThisThread(placement_.thread_cpus[thread_idx]);
  uint64_t seen = 0;  // number of the last loop looked at
  const auto is_new = [&] { return state_.load(std::memory_order_acquire) / kLoopStep != seen; };
  while (true) {
    for (int spin = 0; spin < kSpins && !is_new(); ++spin) Pause();
    if (!is_new()) {
      std::unique_lock lock(mutex_);
      ++num_sleeping_;
      wake_.wait(lock, is_new);
      --num_sleeping_;
    }
    uint64_t state = state_.load(std::memory_order_acquire);
    seen = state / kLoopStep;
    // Asked after the state was read: whoever saw the last number must also see why it is the last.
    if (stopping_.load()) return;
    bool is_inside = false;
    while (state / kLoopStep == seen && (state & kClosed) == 0 && !is_inside) {
      is_inside = state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel);
    }
    if (!is_inside) continue;
    RunPieces(thread_idx);
    state_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace lapidary
