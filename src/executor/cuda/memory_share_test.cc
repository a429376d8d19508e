#include "executor/cuda/memory_share.h"

#include <gtest/gtest.h>

namespace lapidary::cuda {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(MemoryShare, AloneTheShareIsLessWhatIsTaken) {
  const MemoryShare share = ShareMemory(100 * kGiB, 99 * kGiB, 79 * kGiB, 19 * kGiB, 0.9);
  EXPECT_EQ(share.usable, 90 * kGiB);
  EXPECT_EQ(share.taken, 20 * kGiB);
  EXPECT_EQ(share.others, kGiB);
  EXPECT_EQ(share.pool, 70 * kGiB);
}

TEST(MemoryShare, WhatOthersHoldIsNotCountedIntoIt) {
  // The first of two takes 0.3 of the card; the second finds 69 of 100 free, and takes as much.
  const MemoryShare first = ShareMemory(100 * kGiB, 99 * kGiB, 89 * kGiB, 0, 0.3);
  EXPECT_EQ(first.pool, 20 * kGiB);
  const MemoryShare second = ShareMemory(100 * kGiB, 69 * kGiB, 59 * kGiB, 0, 0.3);
  EXPECT_EQ(second.pool, first.pool);
}

TEST(MemoryShare, WhatOthersGiveBackMeanwhileIsNotOurs) {
  // 10 were taken while another process gave back 25.
  const MemoryShare share = ShareMemory(100 * kGiB, 50 * kGiB, 65 * kGiB, 10 * kGiB, 0.3);
  EXPECT_EQ(share.taken, 10 * kGiB);
  EXPECT_EQ(share.pool, 20 * kGiB);
}

TEST(MemoryShare, ThePoolIsNeverMoreThanIsFree) {
  const MemoryShare share = ShareMemory(100 * kGiB, 50 * kGiB, 40 * kGiB, 0, 0.9);
  EXPECT_EQ(share.pool, 40 * kGiB - kUnpooledBytes);
  EXPECT_EQ(ShareMemory(100 * kGiB, 12 * kGiB, kGiB / 2, 0, 0.9).pool, 0);
  EXPECT_EQ(ShareMemory(100 * kGiB, 99 * kGiB, 60 * kGiB, 0, 0.3).pool, 0) << "its share is spent";
}

}  // namespace
}  // namespace lapidary::cuda
