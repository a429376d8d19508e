#include "bench/random_prompts.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lapidary::bench {
namespace {

RandomPromptOptions Options() {
  RandomPromptOptions options;
  options.num_prompts = 200;
  options.input_len = 100;
  options.output_len = 40;
  options.vocab_size = 262144;
  options.seed = 1;
  return options;
}

std::vector<BenchPrompt> Make(const RandomPromptOptions& options) {
  return MakeRandomPrompts(options).value();
}

TEST(RandomPrompts, LengthsAreExactWithoutARange) {
  for (const BenchPrompt& prompt : Make(Options())) {
    EXPECT_EQ(prompt.ids.size(), 100u);
    EXPECT_EQ(prompt.output_len, 40);
  }
}

TEST(RandomPrompts, LengthsFillTheRange) {
  RandomPromptOptions options = Options();
  options.num_prompts = 5000;
  options.range_ratio = 0.5;
  size_t shortest = 1000;
  size_t longest = 0;
  for (const BenchPrompt& prompt : Make(options)) {
    shortest = std::min(shortest, prompt.ids.size());
    longest = std::max(longest, prompt.ids.size());
    EXPECT_GE(prompt.output_len, 20);
    EXPECT_LE(prompt.output_len, 60);
  }
  EXPECT_EQ(shortest, 50u);
  EXPECT_EQ(longest, 150u);
}

TEST(RandomPrompts, IdsAreOfTheVocabularyAndNotSpecial) {
  for (const int vocab_size : {1, 2, 7, 300, 262144}) {
    RandomPromptOptions options = Options();
    options.vocab_size = vocab_size;
    for (const BenchPrompt& prompt : Make(options)) {
      for (const int32_t id : prompt.ids) {
        ASSERT_GE(id, FirstPlainId(vocab_size));
        ASSERT_LT(id, vocab_size);
      }
    }
  }
  EXPECT_EQ(FirstPlainId(262144), 512);
}

TEST(RandomPrompts, ThePrefixIsSharedAndNothingElse) {
  RandomPromptOptions options = Options();
  options.prefix_len = 16;
  const auto prompts = Make(options);
  for (size_t idx = 1; idx < prompts.size(); ++idx) {
    ASSERT_EQ(prompts[idx].ids.size(), 116u);
    EXPECT_TRUE(
        std::equal(prompts[0].ids.begin(), prompts[0].ids.begin() + 16, prompts[idx].ids.begin()));
    EXPECT_FALSE(std::equal(prompts[0].ids.begin() + 16, prompts[0].ids.begin() + 20,
                            prompts[idx].ids.begin() + 16));
  }
}

TEST(RandomPrompts, MorePromptsBeginWithTheSameOnes) {
  RandomPromptOptions options = Options();
  const auto many = Make(options);
  options.num_prompts = 10;
  const auto few = Make(options);
  for (size_t idx = 0; idx < few.size(); ++idx) EXPECT_EQ(few[idx].ids, many[idx].ids);
  options.seed = 2;
  EXPECT_NE(Make(options)[0].ids, few[0].ids);
}

TEST(RandomPrompts, BadOptionsAreRefused) {
  RandomPromptOptions options = Options();
  options.range_ratio = 1.0;
  EXPECT_FALSE(MakeRandomPrompts(options).ok());
  options = Options();
  options.vocab_size = 0;
  EXPECT_FALSE(MakeRandomPrompts(options).ok());
}

}  // namespace
}  // namespace lapidary::bench
