#include "base/edit_distance.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

TEST(EditDistanceTest, CountsAddedDroppedAndChangedCharacters) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "port"), 4);
  EXPECT_EQ(EditDistance("prot", "port"), 2);
  EXPECT_EQ(EditDistance("max-model-length", "max-model-len"), 3);
  EXPECT_EQ(EditDistance("thread", "threads"), 1);
}

}  // namespace
}  // namespace lapidary
