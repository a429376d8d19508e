// Threads that decode and encode the media of requests, a file at a time, with fair turns between
// requests (fair_turns.h). Nothing else runs on them, and they are all that does such work: text
// requests never wait for a picture.
//
// What waits is bounded by its pixels, and what is being decoded at once, too, which bounds the
// memory that decoding takes (up to 9 bytes a pixel).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "server/api_error.h"
#include "server/fair_turns.h"

namespace lapidary {

class MediaPool {
 public:
  struct Limits {
    int num_threads = 1;
    int64_t max_waiting_pixels = int64_t{2} << 30;
    int64_t max_running_pixels = int64_t{64} << 20;  // or one file that has more
  };

  // A file. `pixels`: what decoding goes over, each once for every scan. Runs on any thread of the
  // pool, beside other files of the same request; must not throw.
  struct Step {
    int64_t pixels = 0;
    std::function<ApiStatus()> run;
  };
  struct Job {
    std::vector<Step> steps;  // one at least
    // Once true, files that have not begun are left out.
    std::shared_ptr<const std::atomic<bool>> is_cancelled;
    // Called once, when nothing of the job runs or will: with the first error, if there was one. On
    // a thread of the pool, or the one that ends it; must be quick and not throw.
    std::function<void(const ApiStatus&)> done;
  };

  struct Stats {
    int64_t num_requests = 0;    // waiting or under way
    int64_t waiting_pixels = 0;  // of files that have not begun
    int64_t running_pixels = 0;
    uint64_t num_files = 0;    // that were run
    uint64_t num_pixels = 0;   // of them
    uint64_t num_skipped = 0;  // files whose request was cancelled or had failed before
    uint64_t num_refused = 0;  // requests for which there was no room
  };

  explicit MediaPool(const Limits& limits);
  ~MediaPool() { Stop(); }
  MediaPool(const MediaPool&) = delete;
  MediaPool& operator=(const MediaPool&) = delete;

  // Finishes the files that run and leaves out the others; what is posted later is refused.
  void Stop();

  // An error when there is no room for so many pixels now; then `done` is not called.
  ApiStatus Post(Job job);
  Stats stats() const;

 private:
  struct OpenJob {
    Job job;
    size_t num_begun = 0;
    size_t num_running = 0;
    ApiStatus failure;
  };
  using Lock = std::unique_lock<std::mutex>;

  void Work();
  // All with the mutex held. Leaves out what the job has not begun.
  void Drop(OpenJob* open, uint64_t key);
  void DropCancelled();
  std::optional<FairTurns::Turn> TakeTurn();
  // Without the mutex while the file is decoded and encoded.
  void RunStep(const FairTurns::Turn& turn, Lock* lock);
  // Calls `done` of a job that has ended, without the mutex; false: there was none.
  bool EndJobs(Lock* lock);

  const Limits limits_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  FairTurns turns_;                             // guarded by mutex_, as is the rest
  std::unordered_map<uint64_t, OpenJob> open_;  // by the number turns_ knows
  uint64_t next_key_ = 0;
  int64_t running_cost_ = 0;
  bool is_ending_ = false;
  Stats stats_;
  std::vector<std::thread> threads_;
};

}  // namespace lapidary
