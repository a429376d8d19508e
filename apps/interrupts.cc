#include "apps/interrupts.h"

#include <pthread.h>

#include <cstdlib>

namespace lapidary {
namespace {

sigset_t InterruptSet() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

void ExitInterrupted() { std::_Exit(128 + SIGINT); }

Interrupts::Interrupts() : handler_(ExitInterrupted) {
  const sigset_t signals = InterruptSet();
  // Shells start background jobs with SIGINT ignored, and an ignored signal is never waited for.
  std::signal(SIGINT, SIG_DFL);
  pthread_sigmask(SIG_BLOCK, &signals, &previous_mask_);
  thread_ = std::thread([this] { Watch(); });
}

Interrupts::~Interrupts() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGINT);
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

void Interrupts::set_handler(std::function<void()> handler) {
  const std::lock_guard lock(mutex_);
  handler_ = std::move(handler);
}

void Interrupts::Watch() {
  const sigset_t signals = InterruptSet();
  while (true) {
    int signal = 0;
    sigwait(&signals, &signal);
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    handler_();
  }
}

}  // namespace lapidary
