#include "eval/scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lapidary {
namespace {

Scores SomeScores() {
  Scores scores;
  scores.Add("lists", "", true);
  scores.Add("lists", "", false);
  scores.Add("recall", "<200", true);
  scores.Add("recall", ">2000", false);
  scores.Add("recall", "<200", true);
  return scores;
}

TEST(ScoresTest, CountsAreKeptPerTaskAndBin) {
  const Json json = SomeScores().ToJson();
  EXPECT_EQ(json["count"], 5);
  EXPECT_EQ(json["correct"], 3);
  EXPECT_DOUBLE_EQ(json["accuracy"].get<double>(), 0.6);
  EXPECT_EQ(json["tasks"].size(), 2u);
  EXPECT_EQ(json["tasks"]["lists"], Json({{"accuracy", 0.5}, {"correct", 1}, {"count", 2}}));
  EXPECT_EQ(json["tasks"]["recall"]["correct"], 2);
  EXPECT_EQ(json["tasks"]["recall"]["bins"]["<200"]["count"], 2);
  EXPECT_EQ(json["tasks"]["recall"]["bins"][">2000"]["correct"], 0);
}

TEST(ScoresTest, TheTableEndsWithTheTotal) {
  EXPECT_EQ(SomeScores().ToText(),
            "task     right     of\n"
            "lists        1      2   50.0%\n"
            "recall       2      3   66.7%\n"
            "  <200       2      2  100.0%\n"
            "  >2000      0      1    0.0%\n"
            "total        3      5   60.0%\n");
}

TEST(ScoresTest, NothingAskedIsNothingRight) {
  EXPECT_EQ(Scores().ToJson()["accuracy"], 0.0);
  EXPECT_EQ(Scores().ToJson()["tasks"], Json::object());
}

}  // namespace
}  // namespace lapidary
