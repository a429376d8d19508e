// A fixed set of threads for data-parallel loops inside one step.
//
// ParallelFor splits [0, count) into pieces handed out by an atomic counter; the calling thread
// works too. Workers spin briefly between loops (a decode step runs hundreds of them, microseconds
// apart) and then sleep. One loop at a time: only the owner calls ParallelFor, never from inside a
// loop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace lapidary {

class ThreadPool {
 public:
  // `num_threads` includes the caller; 0 means one per available core.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // body(begin, end, thread_idx) for pieces of at most `grain` items; thread_idx in [0,
  // num_threads()).
  void ParallelFor(int64_t count, int64_t grain,
                   const std::function<void(int64_t, int64_t, int)>& body);

 private:
  void WorkerLoop(int thread_idx);
  void RunPieces(int thread_idx);

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
  int64_t count_ = 0;
  int64_t grain_ = 1;
  std::atomic<int64_t> next_{0};

  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  int num_sleeping_ = 0;  // guarded by mutex_
  std::vector<std::thread> workers_;
};

}  // namespace lapidary
