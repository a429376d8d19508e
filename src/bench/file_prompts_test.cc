#include "bench/file_prompts.h"

#include <gtest/gtest.h>

#include <set>

namespace lapidary::bench {
namespace {

TEST(FilePrompts, ACustomFileHasAPromptALine) {
  const auto prompts = ReadCustomPrompts(
      "{\"prompt\": \"one\"}\n\n{\"prompt\": \"two\", \"output_tokens\": 7, \"x\": 1}", "f");
  ASSERT_TRUE(prompts.ok()) << prompts.error().message;
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_EQ((*prompts)[0].text, "one");
  EXPECT_FALSE((*prompts)[0].output_len.has_value());
  EXPECT_EQ((*prompts)[1].text, "two");
  EXPECT_EQ((*prompts)[1].output_len, 7);
  for (const char* wrong : {"", "{}", "{\"prompt\": 5}", "{\"prompt\": \"\"}", "x",
                            "{\"prompt\": \"a\", \"output_tokens\": 0}"}) {
    EXPECT_FALSE(ReadCustomPrompts(wrong, "f").ok()) << wrong;
  }
}

TEST(FilePrompts, AConversationGivesItsFirstTwoTurns) {
  const auto prompts = ReadShareGptPrompts(
      R"([{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"},
                             {"from": "human", "value": "more"}]},
          {"conversations": [{"from": "human", "value": "alone"}]}, {"id": 1}, 5])",
      "f");
  ASSERT_TRUE(prompts.ok()) << prompts.error().message;
  ASSERT_EQ(prompts->size(), 1u);
  EXPECT_EQ((*prompts)[0].text, "q");
  EXPECT_EQ((*prompts)[0].answer, "a");
  for (const char* wrong : {"{}", "[]", "[", "[{}]"}) {
    EXPECT_FALSE(ReadShareGptPrompts(wrong, "f").ok()) << wrong;
  }
}

TEST(FilePrompts, TheSeedOrdersThemAndFewAreRepeated) {
  std::vector<FilePrompt> prompts;
  for (int idx = 0; idx < 20; ++idx) prompts.push_back({std::to_string(idx)});
  const auto texts = [&](size_t count, uint64_t seed) {
    std::vector<std::string> picked;
    for (const FilePrompt& prompt : PickPrompts(prompts, count, seed)) {
      picked.push_back(prompt.text);
    }
    return picked;
  };
  EXPECT_EQ(texts(8, 1), texts(8, 1));
  EXPECT_NE(texts(8, 1), texts(8, 2));
  const auto many = texts(50, 1);
  EXPECT_EQ(std::set(many.begin(), many.begin() + 20).size(), 20u);
  EXPECT_EQ(many[20], many[0]);
  EXPECT_EQ(many.size(), 50u);
}

}  // namespace
}  // namespace lapidary::bench
