#include "session/request_stream.h"

#include "base/memory_reserve.h"

namespace lapidary {

void EventInbox::Post(RequestEvent event) {
  const std::lock_guard lock(mutex_);
  Insist([&] { events_.push_back(std::move(event)); });
  changed_.notify_one();
}

RequestEvent EventInbox::Take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !events_.empty(); });
  RequestEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

RequestEvent RequestStream::Next() { return inbox_->Take(); }

}  // namespace lapidary
