#include "eval/pebble_judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json_fields.h"
#include "base/read_file.h"

namespace lapidary {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// tools/pebble/judge_cases.py writes the table with the Python judge's verdicts.
TEST(PebbleJudgeTest, VerdictsAreThoseOfThePythonJudge) {
  const std::string path = std::string(LAPIDARY_SOURCE_DIR) + "/tests/data/eval/judge_cases.jsonl";
  const std::string table = ReadFile(path, kMaxDataFileBytes).value();
  int num_right = 0;
  int num_wrong = 0;
  for (size_t begin = 0; begin < table.size();) {
    const size_t end = table.find('\n', begin);
    const std::string line = table.substr(begin, end - begin);
    begin = end + 1;
    const auto one = nlohmann::ordered_json::parse(line);
    const auto item = PebbleItem::Parse(one["item"].dump(), "case");
    ASSERT_TRUE(item.ok()) << line << "\n" << item.error().message;
    const bool is_right = one["right"].get<bool>();
    EXPECT_EQ(IsRightAnswer(*item, one["text"].get<std::string>()), is_right) << line;
    ++(is_right ? num_right : num_wrong);
  }
  EXPECT_GE(num_right, 40);
  EXPECT_GE(num_wrong, 80);
}

TEST(PebbleJudgeTest, TextIsTakenApart) {
  const JudgedText parts = TakeApart(
      "<|channel>thought\nLook it up.\n<channel|>One <|tool_call>call:a{}<tool_call|>two "
      "<|tool_call>call:b{x:1}<tool_call|><|tool_response>");
  EXPECT_EQ(parts.thought, "Look it up.");
  EXPECT_EQ(parts.content, "One two");
  EXPECT_THAT(parts.calls, ElementsAre("call:a{}", "call:b{x:1}"));
  EXPECT_EQ(parts.stop, 50);
  EXPECT_FALSE(parts.is_broken);
  EXPECT_FALSE(TakeApart("cut sho").stop.has_value());
}

TEST(PebbleItemTest, ItemsThatCannotBeJudgedAreRefused) {
  const auto problem = [](const char* line) {
    const auto item = PebbleItem::Parse(line, "line 3");
    return item.ok() ? std::string() : item.error().message;
  };
  EXPECT_THAT(problem("{"), HasSubstr("line 3: not valid JSON"));
  EXPECT_THAT(problem("[]"), HasSubstr("line 3"));
  EXPECT_THAT(problem(R"({"id": "a", "task": "t", "stop": 1})"), HasSubstr("check"));
  EXPECT_THAT(problem(R"({"id": "a", "task": "t", "stop": 1, "check": {"kind": "vibes"},
                          "reference": {}, "messages": []})"),
              HasSubstr("check.kind 'vibes'"));
  EXPECT_THAT(problem(R"({"id": "a", "task": "t", "stop": 1, "check": {"kind": "exact"},
                          "reference": {}, "messages": []})"),
              HasSubstr("content is missing"));
  EXPECT_THAT(problem(R"({"id": "a", "task": "t", "stop": 1, "check": {"kind": "no_call"},
                          "reference": {}, "messages": {}})"),
              HasSubstr("messages"));
  EXPECT_THAT(problem(R"({"id": "a", "task": "t", "stop": 50, "check": {"kind": "tool_call"},
                          "reference": {"tool_calls": [{"function": "f"}]}, "messages": []})"),
              HasSubstr("tool call"));
}

}  // namespace
}  // namespace lapidary
