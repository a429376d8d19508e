#include <optional>

#include "base/check.h"
#include "session/session.h"

namespace lapidary {

Result<std::vector<std::vector<int32_t>>> Session::RunAll(std::vector<Request> requests,
                                                          int max_in_flight,
                                                          const std::function<void()>& on_done) {
  CHECK_GT(max_in_flight, 0);
  // Shared with the engine's thread, which may still hold it when the run was given up.
  const auto inbox = std::make_shared<EventInbox>();
  std::vector<std::vector<int32_t>> outputs(requests.size());
  std::unordered_map<RequestId, size_t> index_of;
  std::vector<RequestHandle> open(requests.size());
  std::optional<Error> problem;
  size_t num_submitted = 0;
  size_t num_ended = 0;
  const auto give_up = [&](Error error) {
    if (problem) return;
    problem = std::move(error);
    for (const RequestHandle& handle : open) handle.Cancel();
  };
  while (num_ended < (problem ? num_submitted : requests.size())) {
    if (!problem && num_submitted < requests.size() &&
        num_submitted - num_ended < static_cast<size_t>(max_in_flight)) {
      auto handle = Submit(requests[num_submitted],
                           [inbox](RequestEvent event) { inbox->Post(std::move(event)); });
      if (handle.ok()) {
        index_of[handle->id()] = num_submitted;
        open[num_submitted] = std::move(*handle);
        requests[num_submitted++] = {};
      } else {
        give_up(handle.error());
      }
      continue;
    }
    const RequestEvent event = inbox->Take();
    const size_t index = index_of.at(event.id);
    for (const SampledToken& token : event.tokens) outputs[index].push_back(token.id);
    if (!event.finish) continue;
    ++num_ended;
    open[index].Release();
    if (event.finish == FinishReason::kError) {
      give_up(MakeError("{}", event.error));
    } else if (event.finish == FinishReason::kCancelled) {
      give_up(MakeError("the engine was stopped"));
    } else if (!problem) {
      on_done();
    }
  }
  if (problem) return *problem;
  return outputs;
}

}  // namespace lapidary
