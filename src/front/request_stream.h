// One request read as it is generated, on the caller's own thread.
//
//   ASSIGN_OR_RETURN(RequestStream stream, RequestStream::Start(engine, std::move(spec)));
//   while (true) {
//     const RequestEvent event = stream.Next();
//     ... event.tokens ...
//     if (event.finish) break;
//   }
#pragma once

#include <memory>

#include "engine/engine.h"

namespace lapidary {

class RequestStream {
 public:
  // `engine` must outlive the stream.
  static Result<RequestStream> Start(Engine& engine, SequenceSpec spec);
  ~RequestStream();  // Cancels what is still running.
  RequestStream(RequestStream&&) = default;
  RequestStream& operator=(RequestStream&&) = delete;

  // Waits for the next event. The one with a finish reason is the last; none may be asked for then.
  RequestEvent Next();

  // Ends the request soon: the last event still comes, with kCancelled unless it ended before. From
  // any thread.
  void Cancel() { engine_->Cancel(id_); }

 private:
  struct Inbox;
  RequestStream(Engine& engine, std::shared_ptr<Inbox> inbox, RequestId id)
      : engine_(&engine), inbox_(std::move(inbox)), id_(id) {}

  Engine* engine_;
  std::shared_ptr<Inbox> inbox_;  // shared with the engine's thread; null once moved from
  RequestId id_;
};

}  // namespace lapidary
