// A fixed set of threads for data-parallel loops inside one step.
//
// ParallelFor splits [0, count) into pieces handed out by an atomic counter; the calling thread
// works too. With several shares (NUMA nodes, thread_placement.h) each has a contiguous part of
// [0, count), as large as its part of the threads, and a counter; a thread takes the pieces of its
// own share first, then what is left of others. Workers spin briefly between loops (a decode step
// runs hundreds of them, microseconds apart) and then sleep. One loop at a time: only the owner
// calls ParallelFor, never from inside a loop.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/thread_placement.h"

namespace lapidary {

class ThreadPool {
 public:
  // `num_threads` includes the caller; 0 means one per available core.
  explicit ThreadPool(int num_threads);
  explicit ThreadPool(const ThreadPlacement& placement);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }
  // That take pieces of the same share, about.
  int num_threads_of_share() const { return std::max(num_threads() / placement_.num_shares, 1); }

  // The calling thread is the first of the pool and runs where that one should.
  void BindCaller() const;

  // body(begin, end, thread_idx) for pieces of at most `grain` items; thread_idx in [0,
  // num_threads()). What one piece throws, the call throws once no piece is under way; pieces that
  // had not begun are left out.
  void ParallelFor(int64_t count, int64_t grain,
                   const std::function<void(int64_t, int64_t, int)>& body);

 private:
  void WorkerLoop(int thread_idx);
  void DealOut(int64_t count);
  void RunPieces(int thread_idx);
  // Keeps the exception under way for the caller, unless there is one, and ends the loop early.
  void KeepFailure();

  // The open loop: its description, and one word that says who is in it.
  //   bits 63..32  number of the loop;  bit 31  closed: no worker may enter any more;
  //   bits 30..0   workers inside
  // A worker that comes late, or that the system has not scheduled, finds the loop closed and is
  // never waited for: the caller waits only for pieces in progress.
  static constexpr uint64_t kLoopStep = uint64_t{1} << 32;
  static constexpr uint64_t kClosed = uint64_t{1} << 31;
  static constexpr uint64_t kInsideMask = kClosed - 1;
  std::atomic<uint64_t> state_{kClosed};
  const std::function<void(int64_t, int64_t, int)>* body_ = nullptr;
  int64_t grain_ = 1;
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  const ThreadPlacement placement_;
  std::vector<int> threads_before_;  // [shares + 1]: threads of the shares before each
  const std::unique_ptr<Share[]> shares_;

  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  int num_sleeping_ = 0;        // guarded by mutex_
  std::exception_ptr failure_;  // of the open loop; guarded by mutex_
  std::vector<std::thread> workers_;
};

}  // namespace lapidary
