#include "server/worker_pool.h"

#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

namespace lapidary {

class WorkerPool::Impl {
 public:
  explicit Impl(int num_threads) : pool(static_cast<size_t>(num_threads)) {}
  boost::asio::thread_pool pool;
  boost::asio::strand<boost::asio::thread_pool::executor_type> long_tasks{pool.get_executor()};
};

WorkerPool::WorkerPool(int num_threads) : impl_(std::make_unique<Impl>(num_threads)) {}
WorkerPool::~WorkerPool() { impl_->pool.join(); }

void WorkerPool::Post(std::function<void()> task) {
  boost::asio::post(impl_->pool, std::move(task));
}

void WorkerPool::PostLong(std::function<void()> task) {
  boost::asio::post(impl_->long_tasks, std::move(task));
}

}  // namespace lapidary
