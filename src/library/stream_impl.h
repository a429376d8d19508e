// The implementation of Stream.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "lapidary/stream.h"
#include "library/answer_parts.h"
#include "library/session_core.h"

namespace lapidary::v0 {

struct Stream::Impl {
  explicit Impl(std::shared_ptr<SessionCore> session);
  ~Impl();

  uint64_t Add(const Request& request);
  void Cancel(uint64_t request);
  void CancelAll();
  std::vector<Update> Take(std::chrono::milliseconds timeout);

  struct OpenAnswer {
    uint64_t request = 0;
    int index = 0;
    RequestHandle handle;
    AnswerParts parts;
  };

  Update MakeUpdate(const RequestEvent& event);

  const std::shared_ptr<SessionCore> core;
  const std::shared_ptr<Mailbox> mailbox;
  mutable std::mutex mutex;  // guards the following; held while a request is submitted
  uint64_t last_request = 0;
  std::unordered_map<RequestId, OpenAnswer> answers;
  std::unordered_map<uint64_t, int> num_open_answers;  // by request
};

}  // namespace lapidary::v0
