#include "executor/cuda/memory_share.h"

#include <gtest/gtest.h>

namespace lapidary::cuda {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

int64_t PoolOfShare(int64_t total, int64_t allocated, int64_t free_now, double share) {
  return PoolBytes(total, UsableBytes(total, {.share = share}), allocated, free_now);
}

TEST(MemoryShare, AloneThePoolIsTheShareLessWhatIsAllocated) {
  EXPECT_EQ(UsableBytes(100 * kGiB, {.share = 0.9}), 90 * kGiB);
  EXPECT_EQ(PoolOfShare(100 * kGiB, 20 * kGiB, 79 * kGiB, 0.9), 70 * kGiB);
}

TEST(MemoryShare, ThePoolIsTheSameWhateverOthersTakeOrGiveBackMeanwhile) {
  // Two start at once, and each finds less free than it left.
  for (const int64_t free_now : {89 * kGiB, 79 * kGiB, 45 * kGiB}) {
    EXPECT_EQ(PoolOfShare(100 * kGiB, 10 * kGiB, free_now, 0.3), 20 * kGiB);
  }
}

TEST(MemoryShare, ThePoolIsNeverMoreThanIsFree) {
  EXPECT_EQ(PoolOfShare(100 * kGiB, 10 * kGiB, 40 * kGiB, 0.9), 40 * kGiB - kDriverBytes);
  EXPECT_EQ(PoolOfShare(100 * kGiB, 0, kGiB / 2, 0.9), 0);
  EXPECT_EQ(PoolOfShare(100 * kGiB, 39 * kGiB, 60 * kGiB, 0.3), 0) << "its share is spent";
}

TEST(MemoryShare, ACapHoldsWhatTheDriverTakesToo) {
  const MemoryLimit limit = {.share = 0.9, .cap = 16 * kGiB};
  EXPECT_EQ(UsableBytes(100 * kGiB, limit), 16 * kGiB - kDriverBytes);
  EXPECT_EQ(UsableBytes(10 * kGiB, limit), 9 * kGiB) << "the smaller of both";
  EXPECT_EQ(UsableBytes(100 * kGiB, {.share = 0.9, .cap = kDriverBytes / 2}), 0);
}

}  // namespace
}  // namespace lapidary::cuda
