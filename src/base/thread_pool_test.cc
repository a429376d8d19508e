#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <memory>
#include <new>
#include <numeric>

namespace lapidary {
namespace {

TEST(ThreadPool, RunsEveryItemExactlyOnceInPiecesOfAtMostTheGrain) {
  for (const int num_threads : {1, 2, 3, 8}) {
    ThreadPool threads(num_threads);
    ASSERT_EQ(threads.num_threads(), num_threads);
    for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> visits(count);
        std::atomic<bool> pieces_fit{true};
        threads.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int thread_idx) {
          if (end - begin > grain || begin >= end || thread_idx < 0 || thread_idx >= num_threads) {
            pieces_fit = false;
          }
          for (int64_t idx = begin; idx < end; ++idx) ++visits[idx];
        });
        EXPECT_TRUE(pieces_fit) << num_threads << " threads, grain " << grain;
        for (int64_t idx = 0; idx < count; ++idx) {
          ASSERT_EQ(visits[idx], 1) << idx << " of " << count << " by " << grain;
        }
      }
    }
  }
}

TEST(ThreadPool, SharesArePartsOfTheItemsInOrderAndAreHelpedWithWhenTheOwnIsDone) {
  const ThreadPlacement placement = {
      .num_threads = 4, .num_shares = 2, .share_of_thread = {0, 1, 1, 1}};
  ThreadPool threads(placement);
  for (const int64_t count : {1, 7, 64, 1001}) {
    for (const int64_t grain : {1, 16, 5000}) {
      std::vector<std::atomic<int>> visits(count);
      threads.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int) {
        EXPECT_EQ(begin % grain, 0);
        for (int64_t idx = begin; idx < end; ++idx) ++visits[idx];
      });
      for (int64_t idx = 0; idx < count; ++idx) ASSERT_EQ(visits[idx], 1) << idx;
    }
  }
  // Nobody but the caller, in the first share, gets on until all of that share was begun.
  std::atomic<int64_t> begun{0};
  std::vector<int64_t> of_caller;
  threads.ParallelFor(400, 1, [&](int64_t begin, int64_t, int thread_idx) {
    if (thread_idx == 0) {
      of_caller.push_back(begin);
      ++begun;
      return;
    }
    EXPECT_GE(begin, 100) << "a worker began in the caller's share";
    while (begun < 100) std::this_thread::yield();
  });
  ASSERT_GE(of_caller.size(), 100u);
  for (int64_t idx = 0; idx < 100; ++idx) EXPECT_EQ(of_caller[idx], idx);
}

TEST(ThreadPool, TreatsANonPositiveGrainAsOneAndANegativeCountAsNothing) {
  ThreadPool threads(2);
  std::atomic<int> items{0};
  threads.ParallelFor(5, 0, [&](int64_t begin, int64_t end, int) {
    EXPECT_EQ(end, begin + 1);
    ++items;
  });
  threads.ParallelFor(-3, 1, [&](int64_t, int64_t, int) { ++items; });
  EXPECT_EQ(items, 5);
}

TEST(ThreadPool, SurvivesThousandsOfRoundsOfChangingSizes) {
  ThreadPool threads(4);
  std::vector<int64_t> values(257);
  for (int round = 0; round < 3000; ++round) {
    const int64_t count = 1 + round % 257;
    // Plain writes: the pool itself must order them before the next loop and before the reader.
    threads.ParallelFor(count, 1 + round % 5, [&](int64_t begin, int64_t end, int) {
      for (int64_t idx = begin; idx < end; ++idx) values[idx] = round + idx;
    });
    const int64_t sum = std::accumulate(values.begin(), values.begin() + count, int64_t{0});
    ASSERT_EQ(sum, count * round + count * (count - 1) / 2) << round;
  }
}

TEST(ThreadPool, ThrowsWhatAPieceThrowsAndWorksOn) {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool threads(num_threads);
    for (int round = 0; round < 200; ++round) {
      std::atomic<int> num_open = 0;
      const auto run = [&] {
        threads.ParallelFor(64, 1, [&](int64_t begin, int64_t, int) {
          ++num_open;
          if (begin % 16 == round % 16) {
            --num_open;
            throw std::bad_alloc();
          }
          --num_open;
        });
      };
      EXPECT_THROW(run(), std::bad_alloc);
      EXPECT_EQ(num_open, 0) << "a piece is still under way";
      std::atomic<int> num_run = 0;
      threads.ParallelFor(64, 1, [&](int64_t, int64_t, int) { ++num_run; });
      EXPECT_EQ(num_run, 64);
    }
  }
}

TEST(ThreadPool, GivesEveryThreadItsOwnIndex) {
  ThreadPool threads(4);
  for (int round = 0; round < 200; ++round) {
    // Two threads with one index would race here; the thread sanitizer sees it.
    std::array<int64_t, 4> per_thread{};
    threads.ParallelFor(400, 1, [&](int64_t begin, int64_t end, int thread_idx) {
      per_thread[thread_idx] += end - begin;
    });
    ASSERT_EQ(std::accumulate(per_thread.begin(), per_thread.end(), int64_t{0}), 400);
  }
}

TEST(ThreadPool, WakesWorkersThatWentToSleep) {
  ThreadPool threads(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::atomic<int> items{0};
    threads.ParallelFor(30, 1, [&](int64_t, int64_t, int) { ++items; });
    ASSERT_EQ(items, 30);
  }
}

TEST(ThreadPool, StartsAndStopsWithoutWork) {
  for (int round = 0; round < 50; ++round) ThreadPool threads(1 + round % 5);
}

TEST(ThreadPool, PoolsOfDifferentOwnersRunSideBySideAndInsideEachOther) {
  ThreadPool outer(2);
  std::vector<std::unique_ptr<ThreadPool>> inner;
  for (int idx = 0; idx < 2; ++idx) inner.push_back(std::make_unique<ThreadPool>(2));
  std::atomic<int> items{0};
  outer.ParallelFor(8, 1, [&](int64_t begin, int64_t end, int thread_idx) {
    inner[thread_idx]->ParallelFor((end - begin) * 16, 3, [&](int64_t first, int64_t last, int) {
      items += static_cast<int>(last - first);
    });
  });
  EXPECT_EQ(items, 8 * 16);
}

TEST(ThreadPool, EndsWhileItsWorkersAreStillLateForTheLastLoop) {
  // A worker may look at a loop only after it was closed and the pool is being destroyed.
  for (int round = 0; round < 3000; ++round) {
    ThreadPool threads(4);
    std::atomic<int> count{0};
    threads.ParallelFor(4, 1, [&](int64_t, int64_t, int) { ++count; });
    ASSERT_EQ(count.load(), 4);
  }
}

}  // namespace
}  // namespace lapidary
