// Ctrl-C (SIGINT) as an ordinary call on a thread of its own, where locks may be taken.
//
// SIGINT is blocked in the thread that makes this and in those it starts afterwards, so this comes
// before an engine.
#pragma once

#include <csignal>
#include <functional>
#include <mutex>
#include <thread>

namespace lapidary {

class Interrupts {
 public:
  // Until there is a handler, an interrupt ends the process.
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // When this returns, the handler before is not running and will not run again.
  void set_handler(std::function<void()> handler);

 private:
  void Watch();

  sigset_t previous_mask_;
  std::mutex mutex_;  // guards what follows, and is held while the handler runs
  std::function<void()> handler_;
  bool stopping_ = false;
  std::thread thread_;
};

// Ends the process at once, as an unhandled SIGINT would for a shell.
[[noreturn]] void ExitInterrupted();

}  // namespace lapidary
