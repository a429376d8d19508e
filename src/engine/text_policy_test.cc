#include "engine/text_policy.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

constexpr DraftQuota kMost = {.forced = 16, .ngram = 8};

void AddRounds(TextPolicy& policy, DraftSource source, int32_t match_length, int32_t num_accepted) {
  for (int round = 0; round < 200; ++round) policy.AddRound(source, match_length, 8, num_accepted);
}

TEST(TextPolicyTest, AtFirstTextIsTriedWhereRowsCostLittle) {
  TextPolicy policy;
  const DraftQuota quota = policy.Choose(kMost, /*row_tokens=*/0.0, /*assistant_tokens=*/1.0);
  EXPECT_EQ(quota.forced, kMost.forced);
  EXPECT_EQ(quota.ngram, kMost.ngram);
  EXPECT_EQ(quota.least_match, 1);
}

TEST(TextPolicyTest, DraftsEndWhereARowCostsMoreThanItPromises) {
  TextPolicy policy;
  for (int round = 0; round < 400; ++round) {
    policy.AddRound(DraftSource::kForced, 0, 16, round % 2 == 0 ? 2 : 5);
  }
  EXPECT_EQ(policy.Choose(kMost, 0.2, 1.0).forced, 5) << "half of the rounds get there";
  EXPECT_EQ(policy.Choose(kMost, 0.7, 1.0).forced, 2);
  EXPECT_EQ(policy.Choose(kMost, 2.0, 1.0).forced, 1) << "one is tried all the same";
}

TEST(TextPolicyTest, OnlyMatchesThatPromiseMoreThanTheAssistantAreUsed) {
  TextPolicy policy;
  for (int32_t match = 1; match <= 8; ++match) {
    AddRounds(policy, DraftSource::kNgram, match, match < 3 ? 0 : match < 5 ? 2 : 6);
  }
  EXPECT_EQ(policy.Choose(kMost, 0.01, 1.0).least_match, 3);
  EXPECT_EQ(policy.Choose(kMost, 0.01, 4.0).least_match, 5);
  const DraftQuota none = policy.Choose(kMost, 0.01, 9.0);
  EXPECT_EQ(none.ngram, 0);
  EXPECT_EQ(policy.Choose(kMost, 3.0, 1.0).ngram, 0) << "rows that cost too much";
  bool is_tried = false;
  for (int step = 0; step < 40; ++step) is_tried |= policy.Choose(kMost, 0.01, 9.0).ngram > 0;
  EXPECT_TRUE(is_tried) << "now and then";
}

TEST(TextPolicyTest, ThereIsNoneWhereNoneIsWanted) {
  TextPolicy policy;
  for (int step = 0; step < 100; ++step) {
    const DraftQuota quota = policy.Choose({}, 0.0, 1.0);
    ASSERT_EQ(quota.most(), 0);
  }
}

}  // namespace
}  // namespace lapidary
