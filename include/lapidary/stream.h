// A stream of requests, whose answers are read as they are made.
//
//   lapidary::Stream stream = session.Open();
//   stream.Add({.prompt = session.EncodePrompt("Once")});
//   while (stream.num_open() > 0) {
//     for (const lapidary::Update& update : stream.Take()) std::cout << update.news.text;
//   }
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "lapidary/answer.h"
#include "lapidary/request.h"

namespace lapidary::v0 {

// Add and Cancel may be called from any thread, Take from one at a time. Requests that are open
// when it goes are cancelled. May outlive its session.
class LAPIDARY_EXPORT Stream {
 public:
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  // Submits a request; its number. Throws InvalidInput where it can never run.
  uint64_t Add(const Request& request);
  // Its answers end soon, with Finish::kAborted.
  void Cancel(uint64_t request);
  void CancelAll();

  // What is new; waits for it, but no longer than `timeout`. Texts are made here, on the caller's
  // thread. Throws when the session was closed.
  std::vector<Update> Take(std::chrono::milliseconds timeout = std::chrono::hours(1));

  // Requests of which Take has not told the end.
  size_t num_open() const;
  // A file descriptor that is readable while Take has something: for event loops.
  int ready_fd() const;

 private:
  friend class Session;
  struct Impl;
  explicit Stream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lapidary::v0
