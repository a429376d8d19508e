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

  const std::function<void(int64_t, int64_t, int)>* body_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  std::atomic<int64_t> next_{0};
  std::atomic<int> num_running_{0};
  std::atomic<uint64_t> generation_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  int num_sleeping_ = 0;  // guarded by mutex_
  std::vector<std::thread> workers_;
};

}  // namespace lapidary
