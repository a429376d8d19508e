#include "fleet/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lapidary::fleet {
namespace {

constexpr const char* kTrace =
    R"({"at": 2.5, "system": 3, "system_tokens": 40, "turns": [{"tokens": 8, "answer": 20}]}

{"at": 1, "turns": [{"tokens": 8, "answer": 20, "think": 4}, {"tokens": 1, "answer": 2}]}
)";

TEST(Trace, ConversationsAreReadInOrderOfTheirBeginnings) {
  const auto trace = ParseTrace(kTrace, "trace");
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].at_s, 1.0);
  EXPECT_EQ((*trace)[0].turns[0].think_s, 4.0);
  EXPECT_EQ((*trace)[0].num_tokens(), 31);
  EXPECT_EQ((*trace)[1].num_system_tokens, 40);
  EXPECT_EQ((*trace)[1].num_tokens(), 68);
}

TEST(Trace, SystemPromptsAreSharedAndTurnsAreNot) {
  Conversation a, b;
  a.system = b.system = 3;
  a.num_system_tokens = b.num_system_tokens = 50;
  EXPECT_EQ(SystemTokens(a, 1000), SystemTokens(b, 1000));
  b.system = 4;
  EXPECT_NE(SystemTokens(a, 1000), SystemTokens(b, 1000));
  EXPECT_EQ(TurnTokens(1, 0, 20, 1000), TurnTokens(1, 0, 20, 1000));
  EXPECT_NE(TurnTokens(1, 0, 20, 1000), TurnTokens(2, 0, 20, 1000));
  EXPECT_NE(TurnTokens(1, 0, 20, 1000), TurnTokens(1, 1, 20, 1000));
}

TEST(Trace, BadLinesAreNamed) {
  for (const auto& [text, problem] : std::vector<std::pair<std::string, std::string>>{
           {"", "t: holds no conversations"},
           {"\n[1]\n", "t:2: a conversation must be a JSON object"},
           {"{", "t:1"},
           {R"({"turns": [{"tokens": 8, "answer": 20}]})", "t:1: at is missing"},
           {R"({"at": -1, "turns": [{"tokens": 8, "answer": 20}]})",
            "t:1: at = -1 is out of range"},
           {R"({"at": 1})", "t:1: 'turns' must be an array"},
           {R"({"at": 1, "turns": []})", "t:1: 'turns' must be an array"},
           {R"({"at": 1, "turns": [3]})", "t:1: a turn must be a JSON object"},
           {R"({"at": 1, "turns": [{"tokens": 0, "answer": 20}]})",
            "turns: tokens = 0 is out of range"},
           {R"({"at": 1, "turns": [{"tokens": 8, "answer": 1e9}]})",
            "turns: answer = 1000000000 is out of range"},
           {R"({"at": 1, "system_tokens": -4, "turns": [{"tokens": 8, "answer": 1}]})",
            "system_tokens = -4 is out of range"}}) {
    const auto trace = ParseTrace(text, "t");
    ASSERT_FALSE(trace.ok()) << text;
    EXPECT_THAT(trace.error().message, testing::HasSubstr(problem)) << text;
  }
}

}  // namespace
}  // namespace lapidary::fleet
