#include "executor/repeated_text.h"

#include <gtest/gtest.h>

#include <random>

namespace lapidary {
namespace {

using Ids = std::vector<int32_t>;

RepeatedText Of(const Ids& tokens, LookupLengths lengths = {}) {
  RepeatedText text(lengths);
  text.Assign(tokens);
  return text;
}

TEST(RepeatedTextTest, WhatStoodBehindTheLastTokensIsProposed) {
  EXPECT_EQ(Of({1, 2, 3, 4, 5, 9, 1, 2}).Propose(3).tokens, (Ids{3, 4, 5}));
  EXPECT_EQ(Of({1, 2, 3, 4, 5, 9, 2, 1}).Propose(3).tokens, Ids{}) << "in another order";
  EXPECT_EQ(Of({1, 2, 3}).Propose(3).tokens, Ids{});
  EXPECT_EQ(Of({}).Propose(3).tokens, Ids{});
  EXPECT_EQ(Of({1, 2, 1, 2}).Propose(0).tokens, Ids{});
}

TEST(RepeatedTextTest, TheLongestMatchGoesFirstAndOfEqualOnesTheLatest) {
  const Ids tokens = {7, 1, 2, 30, 8, 1, 2, 31, 7, 1, 2};
  EXPECT_EQ(Of(tokens).Propose(1).tokens, Ids{30});
  EXPECT_EQ(Of(tokens, {.min = 2, .max = 2}).Propose(1).tokens, Ids{31});
  EXPECT_EQ(Of(tokens, {.min = 4, .max = 4}).Propose(1).tokens, Ids{});
}

TEST(RepeatedTextTest, AMatchThatIsTooShortProposesNothing) {
  const RepeatedText text = Of({7, 1, 2, 30, 8, 1, 2});
  EXPECT_EQ(text.Propose(1).match_length, 2);
  EXPECT_EQ(text.Propose(1, /*least_match=*/2).tokens, Ids{30});
  EXPECT_EQ(text.Propose(1, /*least_match=*/3).tokens, Ids{});
}

TEST(RepeatedTextTest, ARepetitionThatReachesTheEndGoesOn) {
  EXPECT_EQ(Of({5, 6, 7, 5, 6, 7, 5}).Propose(7).tokens, (Ids{6, 7, 5, 6, 7, 5, 6}));
}

TEST(RepeatedTextTest, TokenByTokenIsTheSameAsAtOnceAndAsASearch) {
  std::mt19937 random(5);
  for (const LookupLengths lengths : {LookupLengths{2, 4}, {1, 3}, {3, 3}}) {
    RepeatedText grown(lengths);
    Ids tokens;
    for (int step = 0; step < 600; ++step) {
      tokens.push_back(static_cast<int32_t>(random() % 12));
      grown.Append(tokens.back());
      // The longest, then the latest.
      const auto num_tokens = std::ssize(tokens);
      Ids expected;
      int32_t best = lengths.min - 1;
      for (auto last = num_tokens - 2; last >= 0; --last) {
        int32_t length = 0;
        while (length < lengths.max && length <= last &&
               tokens[last - length] == tokens[num_tokens - 1 - length]) {
          ++length;
        }
        if (length <= best) continue;
        best = length;
        expected.assign(1, tokens[last + 1]);
      }
      const Ids proposed = grown.Propose(1).tokens;
      ASSERT_EQ(proposed, Of(tokens, lengths).Propose(1).tokens);
      // Only so many places are tried: longer texts have more.
      if (step < 100) {
        ASSERT_EQ(proposed, expected) << step;
      } else {
        ASSERT_EQ(proposed.size(), expected.size());
      }
    }
  }
}

}  // namespace
}  // namespace lapidary
