// Memory that is kept back until there is none, so that a request which cannot get any can be told
// so, and what it holds given up.
//
// Where `new` finds no memory it throws std::bad_alloc, unless the thread is in a ReserveScope or
// is unwinding its stack: then a block of the reserve is given back to the allocator, and `new`
// tries again. When nothing is left of it, `new` waits for others to give memory back, for a second
// at most.
#pragma once

#include <chrono>
#include <cstddef>
#include <new>
#include <thread>

namespace lapidary {

// Of the process. Where it was never filled there is none, and all else here changes nothing.
class MemoryReserve {
 public:
  static constexpr size_t kBytes = size_t{16} << 20;

  // Puts back what is missing, as far as there is memory. False: there is not enough for all of it.
  // Any thread; costs nothing while nothing is missing.
  static bool Fill();
};

// What the calling thread allocates while it lives may come from the reserve: what must not fail,
// and takes little.
class ReserveScope {
 public:
  ReserveScope() { ++depth_; }
  ~ReserveScope() { --depth_; }
  ReserveScope(const ReserveScope&) = delete;
  ReserveScope& operator=(const ReserveScope&) = delete;

  static bool is_open() { return depth_ > 0; }

 private:
  friend class TaskScope;
  static thread_local int depth_;
};

// Closes the scopes that it lives in: for requests' own work, which may take much, on threads that
// all requests depend on.
class TaskScope {
 public:
  TaskScope() : depth_(ReserveScope::depth_) { ReserveScope::depth_ = 0; }
  ~TaskScope() { ReserveScope::depth_ = depth_; }
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

 private:
  const int depth_;
};

// Runs what must happen though there be no memory, such as handing over an answer: with the
// reserve's, or with what others give back meanwhile. `action` must be such that it may be begun
// anew when it has thrown std::bad_alloc.
template <typename Action>
void Insist(const Action& action) {
  constexpr std::chrono::milliseconds kPause{5};
  const ReserveScope scope;
  while (true) {
    try {
      return action();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(kPause);
    }
  }
}

}  // namespace lapidary
