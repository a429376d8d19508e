#include "front/request_stream.h"

namespace lapidary {

struct RequestStream::Inbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<RequestEvent> events;
};

Result<RequestStream> RequestStream::Start(Engine& engine, SequenceSpec spec) {
  auto inbox = std::make_shared<Inbox>();
  ASSIGN_OR_RETURN(const RequestId id, engine.Submit(std::move(spec), [inbox](RequestEvent event) {
    const std::lock_guard lock(inbox->mutex);
    inbox->events.push_back(std::move(event));
    inbox->changed.notify_one();
  }));
  return RequestStream(engine, std::move(inbox), id);
}

RequestStream::~RequestStream() {
  if (inbox_ != nullptr) Cancel();
}

RequestEvent RequestStream::Next() {
  std::unique_lock lock(inbox_->mutex);
  inbox_->changed.wait(lock, [&] { return !inbox_->events.empty(); });
  RequestEvent event = std::move(inbox_->events.front());
  inbox_->events.pop_front();
  return event;
}

}  // namespace lapidary
