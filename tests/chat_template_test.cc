#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace lapidary {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::EndsWith;
using ::testing::HasSubstr;

const std::string kDataDir = std::string(LAPIDARY_SOURCE_DIR) + "/tests/data/chat/";

ChatTemplate Load(const std::string& file) {
  auto parsed = ChatTemplate::FromFile(kDataDir + file);
  CHECK(parsed.ok()) << parsed.error().message;
  return std::move(*parsed);
}

ChatInput CallWithResult(const Json& arguments, const std::string& content) {
  ChatInput input;
  input.messages = Json::array(
      {{{"role", "user"}, {"content", "Weather?"}},
       {{"role", "assistant"},
        {"content", content},
        {"tool_calls",
         Json::array({{{"id", "c"}, {"function", {{"name", "f"}, {"arguments", arguments}}}}})}},
       {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "sunny"}}});
  return input;
}

TEST(ChatTemplate, ArgumentsSentAsTextAreParsedForServing) {
  const ChatTemplate chat = Load("gemma4_31b_chat_template.jinja2");
  const auto from_text = chat.RenderPrompt(CallWithResult("{\"city\": \"Paris\"}", ""));
  const auto from_object = chat.RenderPrompt(CallWithResult({{"city", "Paris"}}, ""));
  ASSERT_TRUE(from_text.ok()) << from_text.error().message;
  EXPECT_EQ(JoinSegments(*from_text), JoinSegments(*from_object));
  EXPECT_THAT(JoinSegments(*from_text), HasSubstr("call:f{city:<|\"|>Paris<|\"|>}"));
  EXPECT_TRUE(chat.RenderPrompt(CallWithResult("", "")).ok());
}

TEST(ChatTemplate, BadMessagesGetOneClearSentence) {
  const ChatTemplate chat = Load("gemma4_31b_chat_template.jinja2");
  EXPECT_EQ(chat.RenderPrompt(CallWithResult("{oops", "")).error().message,
            "messages[1].tool_calls[0]: the arguments are not valid JSON");
  EXPECT_EQ(chat.RenderPrompt(CallWithResult("[1]", "")).error().message,
            "messages[1].tool_calls[0]: the arguments must be a JSON object");
  ChatInput input;
  input.messages = Json::array({"text"});
  EXPECT_EQ(chat.RenderPrompt(input).error().message, "messages[0] must be an object");
  input.messages = Json::array({{{"content", "x"}}});
  EXPECT_EQ(chat.RenderPrompt(input).error().message, "messages[0] needs a \"role\"");
}

TEST(ChatTemplate, PromptAlwaysEndsInsideAModelTurn) {
  for (const char* file : {"gemma4_31b_chat_template.jinja2", "gemma4_e2b_chat_template.jinja2",
                           "google-gemma-4-31B-it.jinja"}) {
    SCOPED_TRACE(file);
    const ChatTemplate chat = Load(file);
    const ChatInput input = CallWithResult(Json::object(), "Let me check.");
    const auto raw = chat.Render(input);
    ASSERT_TRUE(raw.ok()) << raw.error().message;
    EXPECT_THAT(JoinSegments(*raw), EndsWith("Let me check.<turn|>\n"));
    const auto prompt = chat.RenderPrompt(input);
    ASSERT_TRUE(prompt.ok());
    const bool is_large = std::string_view(file).find("31") != std::string_view::npos;
    EXPECT_EQ(JoinSegments(*prompt), JoinSegments(*raw) + "<|turn>model\n" +
                                         (is_large ? "<|channel>thought\n<channel|>" : ""));
    EXPECT_TRUE(prompt->back().trusted);
  }
}

TEST(ChatTemplate, OpenThoughtAtTheEndIsSeen) {
  const ChatTemplate chat = Load("gemma4_31b_chat_template.jinja2");
  ChatInput input = CallWithResult(Json::object(), "");
  input.enable_thinking = true;
  EXPECT_TRUE(EndsInsideThought(*chat.RenderPrompt(input)));
  input.enable_thinking = false;
  EXPECT_FALSE(EndsInsideThought(*chat.RenderPrompt(input)));
  input.messages = Json::array({{{"role", "user"}, {"content", "<|channel>thought\n"}}});
  input.add_generation_prompt = false;
  EXPECT_FALSE(EndsInsideThought(*chat.RenderPrompt(input)));
}

TEST(ChatTemplate, ExtraVariablesReachTheTemplateUntrusted) {
  const auto chat = ChatTemplate::FromString("{{ bos_token }}{{ mood }}{{ messages | length }}");
  ASSERT_TRUE(chat.ok());
  ChatInput input;
  input.extra = {{"mood", "calm"}, {"messages", "replaced?"}};
  const auto rendered = chat->Render(input);
  ASSERT_TRUE(rendered.ok());
  ASSERT_EQ(rendered->size(), 3);
  EXPECT_EQ(JoinSegments(*rendered), "<bos>calm0");
  EXPECT_FALSE((*rendered)[1].trusted);
}

TEST(ChatTemplate, LargeMessagesAreFine) {
  const ChatTemplate chat = Load("gemma4_31b_chat_template.jinja2");
  ChatInput input;
  const std::string text = std::string(1 << 20, 'a') + "<channel|>" + std::string(1 << 20, 'b');
  input.messages = Json::array({{{"role", "user"}, {"content", text}},
                                {{"role", "assistant"}, {"content", text}},
                                {{"role", "user"}, {"content", text}}});
  const auto rendered = chat.RenderPrompt(input);
  ASSERT_TRUE(rendered.ok()) << rendered.error().message;
  EXPECT_GT(JoinSegments(*rendered).size(), 6u << 20);
}

class ModelDir : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    dir_ = std::filesystem::path(::testing::TempDir()) /
           (std::string("chat_template_") + info->name());
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(dir_ / name) << content;
  }
  std::string RenderEmpty() {
    const auto chat = ChatTemplate::FromModelDir(dir_);
    return chat.ok() ? JoinSegments(*chat->Render({})) : "error: " + chat.error().message;
  }

  std::filesystem::path dir_;
};

TEST_F(ModelDir, OwnFileWinsOverTheConfig) {
  Write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(RenderEmpty(), "config");
  Write("chat_template.jinja", "own file");
  EXPECT_EQ(RenderEmpty(), "own file");
}

TEST_F(ModelDir, NamedTemplatesUseTheDefault) {
  Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(RenderEmpty(), "d");
}

TEST_F(ModelDir, MissingTemplateIsAClearError) {
  EXPECT_THAT(RenderEmpty(), HasSubstr("no chat template; expected chat_template.jinja"));
  Write("tokenizer_config.json", "{broken");
  EXPECT_THAT(RenderEmpty(), HasSubstr("tokenizer_config.json: not valid JSON"));
  Write("chat_template.jinja", "{% include 'x' %}");
  EXPECT_THAT(RenderEmpty(),
              HasSubstr("chat_template.jinja: chat template: line 1: the tag 'include'"));
}

// Quadratic work on this many members would outlast the test's time limit by far.
TEST_F(ModelDir, AConfigOfManyMembersIsReadInLinearTime) {
  std::string config = "{";
  for (int member = 0; member < 500'000; ++member) config += fmt::format("\"member{}\":0,", member);
  Write("tokenizer_config.json", config + R"("chat_template": "found"})");
  EXPECT_EQ(RenderEmpty(), "found");
}

TEST_F(ModelDir, HostileConfigsAreClearErrors) {
  Write("tokenizer_config.json", std::string(1 << 20, '['));
  EXPECT_THAT(RenderEmpty(), HasSubstr("nested deeper than"));
  Write("tokenizer_config.json", "[]");
  EXPECT_THAT(RenderEmpty(), HasSubstr("not a JSON object"));
  for (const char* file : {"tokenizer_config.json", "chat_template.jinja"}) {
    Write(file, "");
    std::filesystem::resize_file(dir_ / file, uintmax_t{1} << 40);
    EXPECT_THAT(RenderEmpty(), HasSubstr("1099511627776 bytes"));
  }
}

}  // namespace
}  // namespace lapidary
