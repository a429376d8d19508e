// One request read as it is generated, on the caller's own thread.
//
//   ASSIGN_OR_RETURN(RequestStream stream, session.Start(request));
//   while (true) {
//     const RequestEvent event = stream.Next();
//     ... event.tokens ...
//     if (event.finish) break;
//   }
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "session/request_handle.h"

namespace lapidary {

// Where the engine's thread leaves events for a reader. Either may go first.
class EventInbox {
 public:
  void Post(RequestEvent event);
  RequestEvent Take();  // Waits for one.

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RequestEvent> events_;
};

// Cancels what is still running when it goes. May outlive its session: the last event still comes.
class RequestStream {
 public:
  RequestStream(RequestHandle handle, std::shared_ptr<EventInbox> inbox)
      : handle_(std::move(handle)), inbox_(std::move(inbox)) {}

  // Waits for the next event. The one with a finish reason is the last; none may be asked for then.
  RequestEvent Next();

  // As RequestHandle::Cancel.
  void Cancel() const { handle_.Cancel(); }

 private:
  RequestHandle handle_;
  std::shared_ptr<EventInbox> inbox_;
};

}  // namespace lapidary
