#include "front/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lapidary {
namespace {

using Json = nlohmann::ordered_json;

ParsedOutput Content(const std::string& text) {
  return {.reasoning = "", .content = text, .tool_calls = {}};
}

TEST(ConversationTest, MessagesAreInOrderWithTheSystemPromptFirst) {
  Conversation conversation;
  conversation.AddUser("question");
  conversation.AddAnswer({.reasoning = "hm", .content = "answer", .tool_calls = {}});
  conversation.set_system_prompt("be brief");
  EXPECT_EQ(conversation.Messages(), Json::parse(R"([
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "question"},
    {"role": "assistant", "content": "answer", "reasoning": "hm"}])"));
}

TEST(ConversationTest, AnAnswerWithoutContentTakesTheQuestionBack) {
  Conversation conversation;
  conversation.AddUser("one");
  conversation.AddAnswer(Content("1"));
  conversation.AddUser("two");
  conversation.AddAnswer({.reasoning = "unfinished", .content = "", .tool_calls = {}});
  EXPECT_EQ(conversation.Messages().size(), 2);
  conversation.DropQuestion();  // There is none.
  EXPECT_EQ(conversation.Messages().size(), 2);
}

TEST(ConversationTest, ResetKeepsTheSystemPromptAndTheThinkingSwitch) {
  Conversation conversation;
  conversation.set_system_prompt("be brief");
  conversation.set_thinking(true);
  conversation.AddUser("question");
  conversation.Reset();
  EXPECT_TRUE(conversation.empty());
  EXPECT_EQ(conversation.Messages().size(), 1);
  EXPECT_EQ(conversation.Input().enable_thinking, true);
}

TEST(ConversationTest, OpenToolCallsAreAnsweredBeforeTheNextQuestion) {
  Conversation conversation;
  conversation.AddUser("weather?");
  conversation.AddAnswer(
      {.reasoning = "", .content = "", .tool_calls = {{"look", Json{{"at", "sky"}}}}});
  conversation.AddUser("so?");
  const auto chat =
      ChatTemplate::FromFile(LAPIDARY_SOURCE_DIR "/resources/chat_templates/gemma4_e.jinja");
  const std::string prompt = JoinSegments(chat->RenderPrompt(conversation.Input()).value());
  EXPECT_THAT(prompt, testing::HasSubstr("<tool_call|><|tool_response>response:look{"));
  EXPECT_THAT(prompt, testing::HasSubstr("<tool_response|><turn|>\n<|turn>user\nso?<turn|>\n"));
}

TEST(ConversationTest, TakingTheQuestionBackForgetsItsAnswerToo) {
  Conversation conversation;
  EXPECT_FALSE(conversation.TakeBackQuestion().has_value());
  conversation.AddUser("one");
  conversation.AddAnswer(Content("1"));
  const Json before = conversation.Messages();
  conversation.AddUser("two");
  conversation.AddAnswer(Content("2"));
  EXPECT_EQ(conversation.TakeBackQuestion().value().text, "two");
  EXPECT_EQ(conversation.Messages(), before);

  conversation.AddUser("three", 2, 1);
  const Conversation::Question question = conversation.TakeBackQuestion().value();
  EXPECT_EQ(question.text, "three");
  EXPECT_EQ(question.num_images, 2);
  EXPECT_EQ(question.num_sounds, 1);
  EXPECT_EQ(conversation.Messages(), before);
}

TEST(ConversationTest, MessagesOfAnotherAreLoadedAsTheyWere) {
  Conversation first;
  first.set_system_prompt("be brief");
  first.AddUser("weather?");
  first.AddAnswer({.reasoning = "", .content = "", .tool_calls = {{"look", Json{{"at", "sky"}}}}});
  first.AddUser("so?");
  Conversation second;
  second.AddUser("forgotten");
  ASSERT_TRUE(second.Load(first.Messages()).ok());
  EXPECT_EQ(second.Messages(), first.Messages());
  EXPECT_FALSE(second.Load(Json::parse(R"([{"role": "king", "content": "x"}])")).ok());
  EXPECT_EQ(second.Messages(), first.Messages());
}

}  // namespace
}  // namespace lapidary
