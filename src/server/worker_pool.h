// A few threads for what must run neither on the HTTP thread nor on the engine's: parsing, chat
// templates, tokenising.
#pragma once

#include <functional>
#include <memory>

namespace lapidary {

class WorkerPool {
 public:
  explicit WorkerPool(int num_threads);
  // Finishes what was posted.
  ~WorkerPool();

  // std::bad_alloc: it was not posted.
  void Post(std::function<void()> task);
  // One after another, on one thread at most: the others are there for short tasks.
  void PostLong(std::function<void()> task);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lapidary
