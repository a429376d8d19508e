#include "eval/batch_run.h"

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

namespace lapidary {
namespace {

// Shared with the engine's thread, which may still hold it when the run was given up.
struct Inbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<size_t, RequestEvent>> events;  // with the index of the request

  void Post(size_t index, RequestEvent event) {
    const std::lock_guard lock(mutex);
    events.emplace_back(index, std::move(event));
    changed.notify_one();
  }
  std::pair<size_t, RequestEvent> Take() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !events.empty(); });
    auto event = std::move(events.front());
    events.pop_front();
    return event;
  }
};

}  // namespace

Result<std::vector<std::vector<int32_t>>> RunBatch(Engine& engine, std::vector<SequenceSpec> specs,
                                                   int max_in_flight,
                                                   const std::function<void()>& on_done) {
  CHECK_GT(max_in_flight, 0);
  const auto inbox = std::make_shared<Inbox>();
  std::vector<std::vector<int32_t>> outputs(specs.size());
  std::vector<RequestId> ids(specs.size());
  std::optional<Error> problem;
  size_t num_submitted = 0;
  size_t num_ended = 0;
  const auto give_up = [&](const std::string& message) {
    if (problem) return;
    problem = Error{message};
    for (size_t idx = 0; idx < num_submitted; ++idx) engine.Cancel(ids[idx]);
  };
  while (num_ended < (problem ? num_submitted : specs.size())) {
    if (!problem && num_submitted < specs.size() &&
        num_submitted - num_ended < static_cast<size_t>(max_in_flight)) {
      const size_t index = num_submitted;
      const auto id = engine.Submit(std::move(specs[index]), [inbox, index](RequestEvent event) {
        inbox->Post(index, std::move(event));
      });
      if (id.ok()) {
        ids[index] = *id;
        ++num_submitted;
      } else {
        give_up(id.error().message);
      }
      continue;
    }
    const auto [index, event] = inbox->Take();
    for (const SampledToken& token : event.tokens) outputs[index].push_back(token.id);
    if (!event.finish) continue;
    ++num_ended;
    if (event.finish == FinishReason::kError) {
      give_up(event.error);
    } else if (event.finish == FinishReason::kCancelled) {
      give_up("the engine was stopped");
    } else if (!problem) {
      on_done();
    }
  }
  if (problem) return *problem;
  return outputs;
}

}  // namespace lapidary
