#include "base/even_grain.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lapidary {
namespace {

// Units that the busiest of equal threads computes.
int64_t LongestPath(int64_t num_units, int64_t grain, int num_threads) {
  const int64_t num_pieces = (num_units + grain - 1) / grain;
  const int64_t num_rounds = (num_pieces + num_threads - 1) / num_threads;
  const bool ends_short = num_pieces % num_threads == 1 && num_units % grain != 0;
  return ends_short ? (num_rounds - 1) * grain + num_units % grain : num_rounds * grain;
}

TEST(EvenGrain, ThreadsEndTogetherWithinATwentieth) {
  // Rows of E2B's matrices in panels of 16, its head's too.
  for (const int64_t rows : {2048, 4096, 6144, 12288, 262144}) {
    for (const int num_threads : {1, 2, 3, 6, 8, 12, 14, 15, 16, 24}) {
      const int64_t grain = EvenGrain(rows, 16, num_threads);
      ASSERT_EQ(grain % 16, 0);
      const double ideal = static_cast<double>(rows) / 16 / num_threads;
      const double longest = static_cast<double>(LongestPath(rows / 16, grain / 16, num_threads));
      // Less than a unit cannot be cut off.
      EXPECT_LE(longest, std::max(ideal * 1.05, std::ceil(ideal)))
          << rows << " rows on " << num_threads << " threads in pieces of " << grain;
    }
  }
}

TEST(EvenGrain, ThereAreFourPiecesForEachThreadWhereTheUnitsAllowIt) {
  for (const int64_t count : {1, 5, 64, 100, 1000, 4097}) {
    for (const int num_threads : {1, 2, 7, 64}) {
      const int64_t grain = EvenGrain(count, 1, num_threads);
      ASSERT_GE(grain, 1);
      if (count < 4 * num_threads) continue;
      EXPECT_GE((count + grain - 1) / grain, 4 * num_threads);
    }
  }
}

}  // namespace
}  // namespace lapidary
