#include "executor/soft_tokens.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

// Text [0, 3), an image [3, 8), text [8, 9), a sound [9, 12), an image [12, 20).
const SoftTokenRuns kRuns = {{3, 5, true, {}}, {9, 3, false, {}}, {12, 8, true, {}}};

TEST(SoftTokensTest, FindsTheRunOfAPosition) {
  EXPECT_EQ(FindRun(kRuns, 2), nullptr);
  EXPECT_EQ(FindRun(kRuns, 3), &kRuns[0]);
  EXPECT_EQ(FindRun(kRuns, 7), &kRuns[0]);
  EXPECT_EQ(FindRun(kRuns, 8), nullptr);
  EXPECT_EQ(FindRun(kRuns, 19), &kRuns[2]);
  EXPECT_EQ(FindRun(kRuns, 20), nullptr);
  EXPECT_EQ(FindRun({}, 0), nullptr);
}

TEST(SoftTokensTest, ChunksEndBetweenImages) {
  EXPECT_EQ(RowsWithWholeImages(kRuns, 0, 2), 2);
  EXPECT_EQ(RowsWithWholeImages(kRuns, 0, 3), 3);    // just before the image
  EXPECT_EQ(RowsWithWholeImages(kRuns, 0, 4), 3);    // inside: before it
  EXPECT_EQ(RowsWithWholeImages(kRuns, 3, 1), 5);    // begins with it: all of it
  EXPECT_EQ(RowsWithWholeImages(kRuns, 0, 8), 8);    // just behind it
  EXPECT_EQ(RowsWithWholeImages(kRuns, 0, 10), 10);  // a sound may be cut
  EXPECT_EQ(RowsWithWholeImages(kRuns, 8, 6), 4);
  EXPECT_EQ(RowsWithWholeImages(kRuns, 12, 3), 8);
  EXPECT_EQ(RowsWithWholeImages(kRuns, 12, 30), 30);
  EXPECT_EQ(RowsWithWholeImages(kRuns, 3, 0), 0);
}

TEST(SoftTokensTest, ChunksOfAnySizeGetThroughAPrompt) {
  for (int32_t chunk = 1; chunk <= 25; ++chunk) {
    int32_t position = 0;
    while (position < 25) {
      const int32_t num_rows = RowsWithWholeImages(kRuns, position, std::min(chunk, 25 - position));
      ASSERT_GT(num_rows, 0);
      position += num_rows;
      const SoftTokenRun* run = FindRun(kRuns, position);
      EXPECT_TRUE(run == nullptr || !run->is_image || run->position == position) << chunk;
    }
    EXPECT_EQ(position, 25);
  }
}

}  // namespace
}  // namespace lapidary
