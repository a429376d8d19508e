#include "executor/simulated/made_up_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace lapidary::simulated {
namespace {

constexpr int32_t kStop = 3;
constexpr int32_t kCloser = 5;

Vocabulary SmallVocabulary() {
  Vocabulary vocabulary;
  vocabulary.size = 200;
  for (int32_t id = 100; id < 180; ++id) vocabulary.words.push_back(id);
  for (int32_t id = 20; id < 40; ++id) vocabulary.first_words.push_back(id);
  vocabulary.closers = {kCloser};
  vocabulary.stop = kStop;
  return vocabulary;
}

std::vector<int32_t> Answer(int count, const SamplingParams& sampling = {},
                            std::span<const uint32_t> mask = {}, TextHash text = kNoText) {
  std::vector<int32_t> tokens;
  for (int idx = 0; idx < count; ++idx) {
    tokens.push_back(ChooseToken(SmallVocabulary(), text, idx, sampling, mask));
    text = Append(text, tokens.back());
  }
  return tokens;
}

std::vector<uint32_t> MaskOf(const std::vector<int32_t>& ids) {
  std::vector<uint32_t> mask(7, 0);
  for (const int32_t id : ids) mask[id / 32] |= uint32_t{1} << (id % 32);
  return mask;
}

TEST(MadeUpText, AnAnswerIsWordsAndEndsSomeTime) {
  const std::vector<int32_t> answer = Answer(5000);
  const auto stop = std::find(answer.begin(), answer.end(), kStop);
  EXPECT_GE(stop - answer.begin(), static_cast<int64_t>(kLeastAnswerTokens));
  EXPECT_NE(stop, answer.end());
  EXPECT_TRUE(answer[0] >= 20 && answer[0] < 40) << answer[0];
  EXPECT_TRUE(
      std::all_of(answer.begin() + 1, stop, [](int32_t id) { return id >= 100 && id < 180; }));
  EXPECT_GT(std::set<int32_t>(answer.begin(), answer.end()).size(), 70u);
  // About one in kMeanAnswerTokens: 5000 / 256 = 19.5, with a deviation of 4.4.
  const auto num_stops = std::count(answer.begin(), answer.end(), kStop);
  EXPECT_GT(num_stops, 6);
  EXPECT_LT(num_stops, 34);
}

TEST(MadeUpText, TheSameTextGoesOnInTheSameWayAndAnotherDoesNot) {
  EXPECT_EQ(Answer(50), Answer(50));
  EXPECT_NE(Answer(50), Answer(50, {}, {}, Append(kNoText, 7)));
  EXPECT_NE(Append(Append(kNoText, 1), 2), Append(Append(kNoText, 2), 1));
}

TEST(MadeUpText, WhatARequestForbidsNeverComes) {
  SamplingParams sampling;
  sampling.suppress_tokens = {kStop};
  for (int32_t id = 100; id < 140; ++id) sampling.suppress_tokens.push_back(id);
  for (int32_t id = 140; id < 160; ++id) sampling.logit_bias.push_back({id, -100.0f});
  const std::vector<int32_t> answer = Answer(2000, sampling);
  EXPECT_TRUE(std::all_of(answer.begin() + 1, answer.end(),
                          [](int32_t id) { return id >= 160 && id < 180; }));
}

TEST(MadeUpText, WhatARequestAllowsAloneComes) {
  SamplingParams sampling;
  sampling.allowed_tokens = {7, 120};  // one is no word
  const std::vector<int32_t> answer = Answer(200, sampling);
  EXPECT_TRUE(
      std::all_of(answer.begin(), answer.end(), [](int32_t id) { return id == 7 || id == 120; }));
  sampling.suppress_tokens = {120};
  EXPECT_EQ(Answer(3, sampling), (std::vector<int32_t>{7, 7, 7}));
  sampling.suppress_tokens = {7, 120};
  EXPECT_EQ(Answer(1, sampling)[0], -1);
}

TEST(MadeUpText, AStrongBiasIsHeeded) {
  SamplingParams sampling;
  sampling.logit_bias = {{150, 30.0f}, {151, 100.0f}};
  EXPECT_EQ(Answer(2, sampling), (std::vector<int32_t>{151, 151}));
}

TEST(MadeUpText, AMaskIsKeptAndACompleteFormEnds) {
  const std::vector<uint32_t> narrow = MaskOf({9, 11});
  for (const int32_t id : Answer(50, {}, narrow)) EXPECT_TRUE(id == 9 || id == 11) << id;
  const std::vector<uint32_t> complete = MaskOf({9, 11, kStop});
  EXPECT_EQ(Answer(1, {}, complete)[0], kStop);
}

TEST(MadeUpText, AFormIsBroughtToItsEnd) {
  std::vector<int32_t> ids = SmallVocabulary().words;  // as inside a string
  ids.push_back(kCloser);
  const std::vector<int32_t> answer = Answer(200, {}, MaskOf(ids));
  const auto num_closers = std::count(answer.begin(), answer.end(), kCloser);
  EXPECT_GT(num_closers, 20);
  EXPECT_LT(num_closers, 90);
}

TEST(MadeUpText, LogprobsNameTheTokenFirstAndEachOnce) {
  const SampledToken token = WithLogprobs(SmallVocabulary(), Append(kNoText, 4), 120, 20);
  ASSERT_EQ(token.num_top, 20);
  EXPECT_EQ(token.top[0].id, 120);
  EXPECT_EQ(token.top[0].logprob, token.logprob);
  std::set<int32_t> ids;
  for (int idx = 0; idx < token.num_top; ++idx) {
    EXPECT_TRUE(ids.insert(token.top[idx].id).second);
    EXPECT_LT(token.top[idx].logprob, 0.0f);
    if (idx > 0) {
      EXPECT_LT(token.top[idx].logprob, token.top[idx - 1].logprob);
    }
  }
  EXPECT_EQ(WithLogprobs(SmallVocabulary(), kNoText, 120, -1).num_top, 0);
}

}  // namespace
}  // namespace lapidary::simulated
