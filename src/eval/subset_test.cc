#include "eval/subset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace lapidary {
namespace {

using testing::ElementsAre;
using testing::Pair;

const std::vector<std::string>& Tasks() {
  static const std::vector<std::string> tasks = [] {
    std::vector<std::string> made(60, "a");
    made.insert(made.end(), 30, "b");
    made.insert(made.end(), 10, "c");
    return made;
  }();
  return tasks;
}

TEST(SubsetTest, EveryTaskKeepsItsShare) {
  std::map<std::string, int> counts;
  for (const size_t idx : StratifiedSubset(Tasks(), 20, 3)) ++counts[Tasks()[idx]];
  EXPECT_THAT(counts, ElementsAre(Pair("a", 12), Pair("b", 6), Pair("c", 2)));
}

TEST(SubsetTest, ItemsAreDistinctAndInOrder) {
  for (size_t count = 0; count <= Tasks().size() + 1; ++count) {
    const std::vector<size_t> subset = StratifiedSubset(Tasks(), count, 5);
    ASSERT_EQ(subset.size(), std::min(count, Tasks().size()));
    ASSERT_TRUE(std::is_sorted(subset.begin(), subset.end()));
    ASSERT_EQ(std::adjacent_find(subset.begin(), subset.end()), subset.end());
  }
}

TEST(SubsetTest, TheSeedAloneDecides) {
  EXPECT_EQ(StratifiedSubset(Tasks(), 20, 1), StratifiedSubset(Tasks(), 20, 1));
  EXPECT_NE(StratifiedSubset(Tasks(), 20, 1), StratifiedSubset(Tasks(), 20, 2));
  // On every machine: these were drawn once.
  EXPECT_THAT(StratifiedSubset(Tasks(), 5, 0), ElementsAre(18, 47, 58, 73, 75));
}

TEST(SubsetTest, EveryItemIsDrawnBySomeSeed) {
  std::vector<int> times(Tasks().size());
  for (uint64_t seed = 0; seed < 200; ++seed) {
    for (const size_t idx : StratifiedSubset(Tasks(), 20, seed)) ++times[idx];
  }
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  EXPECT_GT(*least, 15);  // 40 on average
  EXPECT_LT(*most, 75);
}

}  // namespace
}  // namespace lapidary
