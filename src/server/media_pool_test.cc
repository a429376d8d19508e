#include "server/media_pool.h"

#include <gtest/gtest.h>

#include <future>
#include <string>

namespace lapidary {
namespace {

constexpr int64_t kMega = int64_t{1} << 20;

// Jobs whose files do nothing but say that they run, and wait at a gate while it is shut.
class MediaPoolTest : public testing::Test {
 protected:
  MediaPool::Step Step(const std::string& name, int64_t pixels, ApiStatus status = {}) {
    return {pixels, [this, name, status] {
              std::unique_lock lock(mutex_);
              ran_.push_back(name);
              changed_.notify_all();
              changed_.wait(lock, [&] { return is_open_; });
              return status;
            }};
  }
  MediaPool::Job Job(std::vector<MediaPool::Step> steps, std::promise<ApiStatus>* outcome,
                     std::shared_ptr<const std::atomic<bool>> is_cancelled = nullptr) {
    return {std::move(steps), std::move(is_cancelled),
            [outcome](const ApiStatus& status) { outcome->set_value(status); }};
  }
  void AwaitRunning(size_t num_files) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ran_.size() >= num_files; });
  }
  void OpenGate() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  std::vector<std::string> ran() {
    const std::lock_guard lock(mutex_);
    return ran_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  std::vector<std::string> ran_;
};

TEST_F(MediaPoolTest, RequestsTakeTurnsFileByFile) {
  std::promise<ApiStatus> first, second;
  MediaPool pool({.num_threads = 1});
  const auto large = [&](const char* name) { return Step(name, 32 * kMega); };
  ASSERT_FALSE(pool.Post(Job({large("a0"), large("a1"), large("a2")}, &first)));
  AwaitRunning(1);
  ASSERT_FALSE(pool.Post(Job({Step("b0", kMega)}, &second)));
  EXPECT_EQ(pool.stats().num_requests, 2);
  EXPECT_EQ(pool.stats().waiting_pixels, 65 * kMega);
  OpenGate();
  EXPECT_FALSE(first.get_future().get());
  EXPECT_FALSE(second.get_future().get());
  EXPECT_EQ(ran(), (std::vector<std::string>{"a0", "b0", "a1", "a2"}));
}

TEST_F(MediaPoolTest, PixelsThatWaitAreBounded) {
  std::promise<ApiStatus> first, second, third;
  MediaPool pool({.num_threads = 1, .max_waiting_pixels = 100});
  ASSERT_FALSE(pool.Post(Job({Step("running", 90), Step("waiting", 60)}, &first)));
  AwaitRunning(1);
  const ApiStatus refused = pool.Post(Job({Step("too many", 41)}, &second));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->code, "media_queue_full");
  EXPECT_EQ(pool.stats().num_refused, 1u);
  ASSERT_FALSE(pool.Post(Job({Step("fits", 40)}, &third)));
  OpenGate();
  EXPECT_FALSE(first.get_future().get());
  EXPECT_FALSE(third.get_future().get());
  EXPECT_EQ(pool.stats().waiting_pixels, 0);
  EXPECT_EQ(pool.stats().num_pixels, 190u);
}

TEST_F(MediaPoolTest, PixelsThatAreDecodedAtOnceAreBounded) {
  std::promise<ApiStatus> outcome;
  MediaPool pool({.num_threads = 3, .max_running_pixels = 64 * kMega});
  ASSERT_FALSE(pool.Post(
      Job({Step("a", 32 * kMega), Step("b", 32 * kMega), Step("c", 32 * kMega)}, &outcome)));
  AwaitRunning(2);
  EXPECT_EQ(pool.stats().running_pixels, 64 * kMega);
  EXPECT_EQ(pool.stats().waiting_pixels, 32 * kMega);
  OpenGate();
  EXPECT_FALSE(outcome.get_future().get());
  EXPECT_EQ(pool.stats().num_files, 3u);
}

TEST_F(MediaPoolTest, AVanishedClientsFilesAreLeftOut) {
  std::promise<ApiStatus> gone, staying;
  const auto is_cancelled = std::make_shared<std::atomic<bool>>(false);
  MediaPool pool({.num_threads = 1});
  ASSERT_FALSE(pool.Post(Job({Step("a0", 1), Step("a1", 1), Step("a2", 1)}, &gone, is_cancelled)));
  ASSERT_FALSE(pool.Post(Job({Step("b0", 1)}, &staying)));
  AwaitRunning(1);
  *is_cancelled = true;
  OpenGate();
  EXPECT_FALSE(gone.get_future().get());
  EXPECT_FALSE(staying.get_future().get());
  EXPECT_EQ(ran(), (std::vector<std::string>{"a0", "b0"}));
  EXPECT_EQ(pool.stats().num_skipped, 2u);
}

TEST_F(MediaPoolTest, TheFirstFileThatFailsEndsItsRequest) {
  std::promise<ApiStatus> outcome;
  OpenGate();
  MediaPool pool({.num_threads = 1});
  ASSERT_FALSE(pool.Post(Job(
      {Step("good", 1), Step("bad", 1, BadRequest("x", "broken")), Step("never", 1)}, &outcome)));
  const ApiStatus status = outcome.get_future().get();
  ASSERT_TRUE(status);
  EXPECT_EQ(status->message, "broken");
  EXPECT_EQ(ran(), (std::vector<std::string>{"good", "bad"}));
}

TEST_F(MediaPoolTest, EndingLeavesOutWhatHasNotBegun) {
  std::promise<ApiStatus> outcome;
  auto pool = std::make_unique<MediaPool>(MediaPool::Limits{.num_threads = 1});
  ASSERT_FALSE(pool->Post(Job({Step("a0", 1), Step("a1", 1)}, &outcome)));
  AwaitRunning(1);
  std::thread ending([&] { pool->Stop(); });
  while (pool->stats().num_skipped == 0) std::this_thread::yield();
  OpenGate();
  ending.join();
  EXPECT_EQ(outcome.get_future().get()->code, "shutting_down");
  EXPECT_EQ(ran(), (std::vector<std::string>{"a0"}));
  std::promise<ApiStatus> late;
  EXPECT_EQ(pool->Post(Job({Step("b0", 1)}, &late))->code, "shutting_down");
}

}  // namespace
}  // namespace lapidary
