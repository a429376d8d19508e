#include "engine/mask_maker.h"

#include <algorithm>
#include <new>
#include <system_error>

#include "base/background.h"
#include "base/check.h"
#include "base/memory_reserve.h"

namespace lapidary {

MaskMaker::MaskMaker(int num_threads, std::function<void(MadeMask)> on_made,
                     int64_t first_turn_steps)
    : num_threads_(num_threads),
      on_made_(std::move(on_made)),
      first_turn_steps_(first_turn_steps) {}

MaskMaker::~MaskMaker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& [id, job] : jobs_) job->cancelled = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskMaker::Start(LateMask late) {
  const SequenceId id = late.id;
  auto job = std::make_shared<Job>(std::move(late));
  job->turn_steps = first_turn_steps_;
  {
    const std::lock_guard lock(mutex_);
    StartThreads();
    CHECK(jobs_.emplace(id, job).second) << "sequence " << id;
    waiting_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void MaskMaker::StartThreads() {
  try {
    while (std::ssize(threads_) < num_threads_) threads_.emplace_back([this] { Loop(); });
  } catch (const std::system_error&) {  // No room for a thread's stack: one of them does.
    if (threads_.empty()) throw std::bad_alloc();
  }
}

void MaskMaker::Cancel(SequenceId id) {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  found->second->cancelled = true;
  std::erase(waiting_, found->second);
  jobs_.erase(found);
}

Status MaskMaker::RunTurn(Job& job) {
  const int64_t num_left = job.late.max_steps - job.num_steps;
  grammar::Work work(std::min(job.turn_steps, num_left), &job.cancelled);
  job.turn_steps *= 2;
  const auto make = [&]() -> Status {
    while (job.matcher.num_accepted() < std::ssize(job.late.outputs)) {
      const int32_t token = job.late.outputs[job.matcher.num_accepted()];
      ASSIGN_OR_RETURN(const bool is_accepted, job.matcher.Accept(token, &work));
      if (!is_accepted) return Error{"the grammar lost its way", ErrorKind::kFault};
    }
    std::vector<uint32_t> words(job.matcher.num_words());
    RETURN_IF_ERROR(job.matcher.FillMask(words, &work));
    ASSIGN_OR_RETURN(const auto only, job.matcher.OnlyAllowedToken(&work));
    static_cast<void>(only);
    return {};
  };
  Status status = make();
  job.num_steps += work.num_done();
  const bool is_unfinished = !status.ok() && status.error().kind == ErrorKind::kBusy;
  if (is_unfinished && job.num_steps >= job.late.max_steps) {
    return MakeError(
        "which tokens the form of the answer allows takes too long to find out: more than {} "
        "million steps for the answer",
        grammar::Work::kMaxMaskSteps / 1'000'000);
  }
  return status;
}

MadeMask MaskMaker::TakeTurn(Job& job) {
  MadeMask made{.id = job.late.id, .status = {}, .matcher = nullptr, .num_steps = 0};
  try {
    made.status = RunTurn(job);
    if (made.status.ok()) made.matcher = std::make_shared<const grammar::Matcher>(job.matcher);
  } catch (const std::bad_alloc&) {
    Insist([&] {
      made.status = Error{"there is no memory left for the form of the answer; try again later",
                          ErrorKind::kBusy};
    });
    job.has_failed = true;
  }
  made.num_steps = job.num_steps;
  return made;
}

void MaskMaker::Loop() {
  RunInBackground();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const std::shared_ptr<Job> job = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    MadeMask made = TakeTurn(*job);
    lock.lock();
    if (job->cancelled) continue;
    const bool needs_another =
        !made.status.ok() && made.status.error().kind == ErrorKind::kBusy && !job->has_failed;
    if (needs_another) {
      Insist([&] { waiting_.push_back(job); });
      continue;
    }
    jobs_.erase(job->late.id);
    lock.unlock();
    on_made_(std::move(made));
    lock.lock();
  }
}

}  // namespace lapidary
