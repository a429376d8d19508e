// Makes the masks that steps did not wait for, on threads of its own.
//
// A job ends when the mask is remembered by its grammar, so that the executor, which asks again,
// finds it at once. Jobs have turns: the first is short and each is twice as long as the one
// before, so a mask that takes long holds up one that does not for about as long as that one takes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/scheduler.h"
#include "grammar/matcher.h"

namespace lapidary {

struct MadeMask {
  SequenceId id = 0;
  // An error: the mask needs more than a limit, or (kBusy) there was no memory for it.
  Status status;
  std::shared_ptr<const grammar::Matcher> matcher;  // behind the outputs
  int64_t num_steps = 0;                            // of work
};

class MaskMaker {
 public:
  static constexpr int64_t kFirstTurnSteps = 100 * grammar::Work::kStepsPerMillisecond;

  // `on_made` is called on one of the threads, for each job that was not cancelled; must not throw.
  MaskMaker(int num_threads, std::function<void(MadeMask)> on_made,
            int64_t first_turn_steps = kFirstTurnSteps);
  // Cancels what is open.
  ~MaskMaker();
  MaskMaker(const MaskMaker&) = delete;
  MaskMaker& operator=(const MaskMaker&) = delete;

  // One job of a sequence at a time.
  void Start(LateMask late);
  // Ends the sequence's job, if there is one, soon. It may have been made already.
  void Cancel(SequenceId id);

 private:
  struct Job {
    explicit Job(LateMask late_) : late(std::move(late_)), matcher(late.grammar) {}
    const LateMask late;
    grammar::Matcher matcher;
    int64_t num_steps = 0;  // done
    int64_t turn_steps = 0;
    bool has_failed = false;  // there was no memory for it
    std::atomic<bool> cancelled{false};
  };

  // With the mutex held. std::bad_alloc: there is not one.
  void StartThreads();
  void Loop();
  // A turn of the job, and what came of it.
  static MadeMask TakeTurn(Job& job);
  // An error of kind kBusy: it needs another turn.
  static Status RunTurn(Job& job);

  const int num_threads_;
  const std::function<void(MadeMask)> on_made_;
  const int64_t first_turn_steps_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::unordered_map<SequenceId, std::shared_ptr<Job>> jobs_;
  std::deque<std::shared_ptr<Job>> waiting_;  // for a turn
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // begun with the first job
};

}  // namespace lapidary
