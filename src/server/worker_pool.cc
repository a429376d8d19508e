#include "server/worker_pool.h"

#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

#include "base/memory_reserve.h"
#include "server/log_failure.h"

namespace lapidary {

class WorkerPool::Impl {
 public:
  explicit Impl(int num_threads) : pool(static_cast<size_t>(num_threads)) {}
  boost::asio::thread_pool pool;
  boost::asio::strand<boost::asio::thread_pool::executor_type> long_tasks{pool.get_executor()};
};

namespace {

// What leaves a task would end the process. Tasks that anybody waits for tell of it themselves.
std::function<void()> Guarded(std::function<void()> task) {
  return [task = std::move(task)] {
    // Strands go on to their next task in a destructor, which allocates.
    static thread_local const ReserveScope of_thread;
    const TaskScope scope;
    try {
      task();
    } catch (const std::exception& error) {
      LogFailure("a task failed", error);
    }
  };
}

}  // namespace

WorkerPool::WorkerPool(int num_threads) : impl_(std::make_unique<Impl>(num_threads)) {}
WorkerPool::~WorkerPool() { impl_->pool.join(); }

void WorkerPool::Post(std::function<void()> task) {
  boost::asio::post(impl_->pool, Guarded(std::move(task)));
}

void WorkerPool::PostLong(std::function<void()> task) {
  boost::asio::post(impl_->long_tasks, Guarded(std::move(task)));
}

}  // namespace lapidary
