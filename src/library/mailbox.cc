#include "library/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/check.h"
#include "base/memory_reserve.h"

namespace lapidary {

Mailbox::Mailbox() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "a stream's descriptor");
}

Mailbox::~Mailbox() { close(fd_); }

void Mailbox::Post(RequestEvent event) {
  const std::lock_guard lock(mutex_);
  Insist([&] { events_.push_back(std::move(event)); });
  if (events_.size() == 1) Wake();
}

void Mailbox::Wake() {
  const uint64_t one = 1;
  CHECK_EQ(write(fd_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  changed_.notify_one();
}

std::vector<RequestEvent> Mailbox::TakeAll(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, timeout, [&] { return closed_ || !events_.empty(); })) return {};
  std::vector<RequestEvent> events;
  events.swap(events_);
  uint64_t num_wakes = 0;
  // A closed one stays readable, so that a loop which polls finds out.
  if (!closed_) CHECK_EQ(read(fd_, &num_wakes, sizeof(num_wakes)), sizeof(num_wakes));
  return events;
}

void Mailbox::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  Wake();
}

bool Mailbox::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace lapidary
