#include "fleet/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace lapidary::fleet {
namespace {

std::vector<int32_t> Prompt(int32_t topic, int length) {
  std::vector<int32_t> prompt;
  for (int idx = 0; idx < length; ++idx) prompt.push_back(1000 * topic + idx);
  return prompt;
}

TEST(Policy, RoundRobinTakesTurns) {
  RoundRobin policy;
  const std::vector<int> loads = {9, 0, 0};
  std::vector<int> chosen;
  for (int idx = 0; idx < 6; ++idx) chosen.push_back(policy.Choose({}, loads));
  EXPECT_EQ(chosen, (std::vector<int>{0, 1, 2, 0, 1, 2}));
}

TEST(Policy, LeastLoadTakesOneOfTheIdlest) {
  LeastLoad policy;
  std::set<int> chosen;
  for (int idx = 0; idx < 100; ++idx) chosen.insert(policy.Choose({}, std::vector{3, 1, 2, 1}));
  EXPECT_EQ(chosen, (std::set<int>{1, 3}));
}

TEST(Policy, APromptGoesWhereItsLongestPrefixWent) {
  PrefixAware policy;
  const int first = policy.Choose(Prompt(1, 200), std::vector{0, 0, 0});
  std::vector<int> loads = {1, 1, 1};
  loads[first] = 3;
  EXPECT_EQ(policy.Choose(Prompt(1, 500), loads), first) << "the conversation goes on";
  EXPECT_NE(policy.Choose(Prompt(2, 500), loads), first) << "another one goes where there is room";
  EXPECT_NE(policy.Choose(Prompt(1, 40), loads), first) << "shorter than a block";
}

TEST(Policy, AnOverloadedReplicaIsPassedAndTheOtherIsRemembered) {
  PrefixAware policy;
  const int first = policy.Choose(Prompt(1, 200), std::vector{0, 0});
  std::vector<int> loads = {0, 0};
  loads[first] = 20;
  const int second = policy.Choose(Prompt(1, 200), loads);
  EXPECT_NE(second, first);
  EXPECT_EQ(policy.Choose(Prompt(1, 200), loads), second);
  loads = {0, 0};
  loads[second] = 1;
  EXPECT_EQ(policy.Choose(Prompt(1, 200), loads), first) << "both have it, and this one is idle";
}

TEST(Policy, AnUnknownNameIsAnsweredWithThoseThatThereAre) {
  for (const std::string& name : PolicyNames()) EXPECT_TRUE(MakePolicy(name).ok()) << name;
  const auto policy = MakePolicy("random");
  ASSERT_FALSE(policy.ok());
  EXPECT_THAT(policy.error().message, testing::HasSubstr("round-robin, least-load, prefix"));
}

}  // namespace
}  // namespace lapidary::fleet
