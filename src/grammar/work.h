// How much may be done before a caller wants to hear again: an account of steps.
//
// Compiling a grammar and making a mask may take seconds. Both are counted in steps of about ten
// nanoseconds each, so what is too much does not depend on the machine. A call whose account runs
// out returns an error of kind kBusy; called again, it finds most of what it has done remembered.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>
#include <thread>

namespace lapidary::grammar {

class Work {
 public:
  static constexpr int64_t kStepsPerMillisecond = 100'000;  // about
  // What all of an answer's masks may take together, and what compiling a constraint may.
  static constexpr int64_t kMaxMaskSteps = 5'000 * kStepsPerMillisecond;
  static constexpr int64_t kMaxCompileSteps = 5'000 * kStepsPerMillisecond;

  // `stop`, if any, ends the work once it is set; it must outlive this.
  explicit Work(int64_t num_steps, const std::atomic<bool>* stop = nullptr)
      : num_left_(num_steps), num_given_(num_steps), stop_(stop) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // False: the account is empty, or the work was stopped.
  bool Take(int64_t num_steps) {
    num_left_ -= num_steps;
    if (num_left_ < next_look_ && IsStopped()) [[unlikely]]
      num_left_ = -1;
    return num_left_ >= 0;
  }

  // Locks a mutex that others hold for long at times. False, unlocked: the account is empty.
  bool Lock(std::mutex& mutex) {
    for (int num_tries = 0; !mutex.try_lock(); ++num_tries) {
      if (num_tries < kNumQuickTries) {
        std::this_thread::yield();
        continue;
      }
      constexpr std::chrono::microseconds kNap{50};
      constexpr int64_t kNapSteps = kStepsPerMillisecond / 20;
      num_waited_ += kNapSteps;
      if (!Take(kNapSteps)) return false;
      std::this_thread::sleep_for(kNap);
    }
    return true;
  }

  bool is_empty() const { return num_left_ < 0; }
  bool is_stopped() const { return stop_ != nullptr && stop_->load(std::memory_order_relaxed); }
  // Without the time that Lock waited.
  int64_t num_done() const { return num_given_ - num_left_ - num_waited_; }

 private:
  static constexpr int kNumQuickTries = 20;
  static constexpr int64_t kStepsBetweenLooks = kStepsPerMillisecond;

  bool IsStopped() {
    next_look_ = num_left_ - kStepsBetweenLooks;
    return is_stopped();
  }

  int64_t num_left_;
  const int64_t num_given_;
  int64_t num_waited_ = 0;
  int64_t next_look_ = std::numeric_limits<int64_t>::max();
  const std::atomic<bool>* const stop_;
};

}  // namespace lapidary::grammar
