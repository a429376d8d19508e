#include "server/media_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace lapidary {
namespace {

// What a file costs in turns at least: a tower's work does not depend on how small a picture is.
constexpr int64_t kMinTurnPixels = int64_t{4} << 20;

int64_t TurnCost(int64_t pixels) { return std::max(pixels, kMinTurnPixels); }

}  // namespace

MediaPool::MediaPool(const Limits& limits) : limits_(limits) {
  CHECK_GE(limits.num_threads, 1);
  for (int idx = 0; idx < limits.num_threads; ++idx) threads_.emplace_back([this] { Work(); });
}

void MediaPool::Stop() {
  {
    Lock lock(mutex_);
    is_ending_ = true;
    for (auto& [key, open] : open_) {
      if (!open.failure) open.failure = ShuttingDown();
      Drop(&open, key);
    }
    changed_.notify_all();
    while (EndJobs(&lock)) {
    }
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

ApiStatus MediaPool::Post(Job job) {
  CHECK(!job.steps.empty());
  int64_t num_pixels = 0;
  std::vector<int64_t> costs;
  for (const Step& step : job.steps) {
    num_pixels += step.pixels;
    costs.push_back(TurnCost(step.pixels));
  }
  Lock lock(mutex_);
  if (is_ending_) return ShuttingDown();
  DropCancelled();
  if (stats_.waiting_pixels > 0 &&
      num_pixels > limits_.max_waiting_pixels - stats_.waiting_pixels) {
    ++stats_.num_refused;
    return MediaQueueFull();
  }
  const uint64_t key = next_key_++;
  const auto open = open_.try_emplace(key).first;
  try {
    turns_.Add(key, std::move(costs));
  } catch (const std::bad_alloc&) {
    open_.erase(open);
    throw;
  }
  open->second.job = std::move(job);
  stats_.waiting_pixels += num_pixels;
  changed_.notify_all();
  return {};
}

MediaPool::Stats MediaPool::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.num_requests = std::ssize(open_);
  return stats;
}

void MediaPool::Drop(OpenJob* open, uint64_t key) {
  turns_.Remove(key);
  std::vector<Step>& steps = open->job.steps;
  for (size_t idx = open->num_begun; idx < steps.size(); ++idx) {
    stats_.waiting_pixels -= steps[idx].pixels;
    ++stats_.num_skipped;
  }
  steps.resize(open->num_begun);
}

void MediaPool::DropCancelled() {
  for (auto& [key, open] : open_) {
    if (open.job.is_cancelled && *open.job.is_cancelled) Drop(&open, key);
  }
}

std::optional<FairTurns::Turn> MediaPool::TakeTurn() {
  const int64_t room = running_cost_ == 0 ? std::numeric_limits<int64_t>::max()
                                          : limits_.max_running_pixels - running_cost_;
  return turns_.Take(room);
}

void MediaPool::RunStep(const FairTurns::Turn& turn, Lock* lock) {
  OpenJob& open = open_.at(turn.request);
  const int64_t num_pixels = open.job.steps[turn.step].pixels;
  std::function<ApiStatus()> run = std::move(open.job.steps[turn.step].run);
  ++open.num_begun;
  ++open.num_running;
  running_cost_ += turn.cost;
  stats_.waiting_pixels -= num_pixels;
  stats_.running_pixels += num_pixels;
  lock->unlock();
  ApiStatus status = run();
  run = nullptr;
  lock->lock();
  running_cost_ -= turn.cost;
  stats_.running_pixels -= num_pixels;
  stats_.num_pixels += static_cast<uint64_t>(num_pixels);
  ++stats_.num_files;
  --open.num_running;
  if (status) {
    if (!open.failure) open.failure = std::move(status);
    Drop(&open, turn.request);
  }
  changed_.notify_all();
}

bool MediaPool::EndJobs(Lock* lock) {
  const auto ended = std::find_if(open_.begin(), open_.end(), [](const auto& entry) {
    const OpenJob& open = entry.second;
    return open.num_running == 0 && open.num_begun == open.job.steps.size();
  });
  if (ended == open_.end()) return false;
  {
    const OpenJob open = std::move(ended->second);
    open_.erase(ended);
    lock->unlock();
    open.job.done(open.failure);
  }
  lock->lock();
  return true;
}

void MediaPool::Work() {
  Lock lock(mutex_);
  while (true) {
    DropCancelled();
    if (EndJobs(&lock)) continue;
    if (is_ending_) return;
    if (const auto turn = TakeTurn()) {
      RunStep(*turn, &lock);
    } else {
      changed_.wait(lock);
    }
  }
}

}  // namespace lapidary
