// A mailbox in which the engine's thread leaves events for one reader, who may wait for them in its
// own way.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "engine/engine.h"

namespace lapidary {

class Mailbox {
 public:
  Mailbox();
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void Post(RequestEvent event);
  // All that has come since; waits for the first, but no longer than `timeout`.
  std::vector<RequestEvent> TakeAll(std::chrono::milliseconds timeout);

  // The session is closed: the reader is woken and waits no more.
  void Close();
  bool closed() const;

  // Readable while TakeAll would not wait.
  int fd() const { return fd_; }

 private:
  void Wake();

  const int fd_;  // an eventfd
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RequestEvent> events_;
  bool closed_ = false;
};

}  // namespace lapidary
