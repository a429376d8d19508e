#include "server/byte_budget.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(ByteBudget, WhatNeverFitsIsTooLargeAndWhatMayFitLaterIsTold) {
  const auto budget = std::make_shared<ByteBudget>(8 * kMiB);  // 7 MiB of it for large requests
  ByteLease other(budget);
  ASSERT_TRUE(other.Grow(4 * kMiB));
  ByteLease lease(budget);
  ASSERT_FALSE(lease.Grow(7 * kMiB));
  EXPECT_EQ(lease.Refusal(7 * kMiB).status, 503);
  EXPECT_EQ(lease.Refusal(7 * kMiB).retry_after_seconds, 1);

  const ApiError too_large = lease.Refusal(7 * kMiB + 1);
  EXPECT_EQ(too_large.status, 413);
  EXPECT_EQ(too_large.retry_after_seconds, 0);
  EXPECT_EQ(too_large.message,
            "reading the request takes 7340033 bytes of memory, and it may have 7340032 "
            "(--max-request-memory of the server)");
}

TEST(ByteBudget, WhatARequestHoldsCountsAsItsOwn) {
  ByteLease lease(std::make_shared<ByteBudget>(8 * kMiB));
  ASSERT_TRUE(lease.Grow(4 * kMiB));
  EXPECT_EQ(lease.Refusal(3 * kMiB).status, 503);
  EXPECT_EQ(lease.Refusal(3 * kMiB + 1).status, 413);
  EXPECT_EQ(lease.Refusal(SIZE_MAX - 4 * kMiB).status, 413);
}

TEST(ByteBudget, SmallRequestsMayHaveAllOfIt) {
  ByteLease lease(std::make_shared<ByteBudget>(100'000));
  EXPECT_EQ(lease.Refusal(100'000).status, 503);
  EXPECT_EQ(lease.Refusal(100'001).status, 413);
}

}  // namespace
}  // namespace lapidary
