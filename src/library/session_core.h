// What a session of the public interface and its streams share.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lapidary/session.h"
#include "library/mailbox.h"
#include "request/prepare_request.h"
#include "session/session.h"

namespace lapidary::v0 {

// Throws what an internal error is to the caller.
[[noreturn]] void Throw(const lapidary::Error& error);

template <typename T>
T ValueOrThrow(Result<T> result) {
  if (!result.ok()) Throw(result.error());
  return *std::move(result);
}

struct ChatDetails {
  std::optional<ChatRules> rules;  // none: a text with media, no conversation
  bool starts_in_thought = false;
  PlacedMedia media;
};

class SessionCore {
 public:
  SessionCore(const std::string& model, const SessionOptions& options);
  // Does nothing in a process forked from the one that made it: the engine's threads are not there.
  ~SessionCore();

  bool is_forked() const;
  // Throws when it is closed, or belongs to the process that this one was forked from.
  lapidary::Session& session() const;
  const TextModel& text() const { return session().text(); }
  const Tokenizer& tokenizer() const;
  const std::string& model() const { return model_; }
  DeviceKind device() const { return device_; }

  // A mailbox that Close closes.
  std::shared_ptr<Mailbox> OpenMailbox();
  void Close();

  // What the engine shall do; throws InvalidInput.
  PreparedRequest Prepare(const Request& request) const;

 private:
  SamplingParams MakeSampling(const Request& request) const;
  AnswerRequest MakeAnswerRequest(const Request& request) const;

  const std::string model_;
  const pid_t process_;
  DeviceKind device_ = DeviceKind::kCpu;
  std::unique_ptr<lapidary::Session> session_;

  mutable std::mutex mutex_;  // guards the following
  bool closed_ = false;
  std::vector<std::weak_ptr<Mailbox>> mailboxes_;
};

}  // namespace lapidary::v0
