#include "server/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace lapidary {
namespace {

TEST(WorkerPool, ShortTasksPassLongOnesThatWait) {
  std::promise<void> may_end;
  std::shared_future<void> end = may_end.get_future().share();
  std::promise<void> short_one_ran;
  std::atomic<int> num_long_done = 0;
  {
    WorkerPool workers(2);
    for (int idx = 0; idx < 10; ++idx) {
      workers.PostLong([&, end] {
        end.wait();
        ++num_long_done;
      });
    }
    workers.Post([&] { short_one_ran.set_value(); });
    short_one_ran.get_future().wait();
    EXPECT_EQ(num_long_done, 0);
    may_end.set_value();
  }
  EXPECT_EQ(num_long_done, 10) << "the pool ends when everything posted is done";
}

}  // namespace
}  // namespace lapidary
