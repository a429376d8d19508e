// What the formats with typed items make of a thought, text and calls, whole and in pieces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/messages_format.h"
#include "server/messages_request.h"
#include "server/ollama_format.h"
#include "server/response_store.h"
#include "server/responses_format.h"
#include "server/responses_request.h"

namespace lapidary {
namespace {

using testing::ElementsAre;

constexpr Usage kUsage = {
    .prompt_tokens = 10, .completion_tokens = 7, .cached_tokens = 4, .reasoning_tokens = 3};

ChoiceDelta Thought(std::string text) {
  ChoiceDelta delta;
  delta.reasoning = std::move(text);
  return delta;
}
ChoiceDelta Text(std::string text) {
  ChoiceDelta delta;
  delta.content = std::move(text);
  return delta;
}
ChoiceDelta Call(int index) {
  ChoiceDelta delta;
  delta.tool_calls.push_back({index, "call_" + std::to_string(index), "add", R"({"a":2})"});
  return delta;
}
// The first call comes in three parts, the last of them beside the second call.
std::vector<ChoiceDelta> Deltas() {
  std::vector<ChoiceDelta> deltas = {Thought("H"), Thought("m."), Text("Let "), Text("me see.")};
  const ChoiceDelta::ToolCall whole = Call(0).tool_calls[0];
  for (const auto& [begin, end] : {std::pair{0, 0}, {0, 4}}) {
    ChoiceDelta& part = deltas.emplace_back();
    part.tool_calls.push_back({0, begin == end ? whole.id : "", begin == end ? whole.name : "",
                               whole.arguments.substr(begin, end - begin)});
  }
  ChoiceDelta& last = deltas.emplace_back(Call(1));
  last.tool_calls.insert(last.tool_calls.begin(), {0, "", "", whole.arguments.substr(4)});
  return deltas;
}
ChoiceDelta Joined() {
  ChoiceDelta whole;
  for (const ChoiceDelta& delta : Deltas()) {
    whole.reasoning += delta.reasoning;
    whole.content += delta.content;
  }
  for (const int index : {0, 1}) whole.tool_calls.push_back(Call(index).tool_calls[0]);
  return whole;
}

std::vector<OrderedJson> Stream(AnswerFormat& format, const FinishInfo& finish) {
  ServerEvents events;
  format.Begin(kUsage, &events);
  bool is_first = true;
  for (const ChoiceDelta& delta : Deltas()) {
    format.Delta(0, delta, nullptr, std::exchange(is_first, false), kUsage, &events);
  }
  format.Delta(0, {}, &finish, false, kUsage, &events);
  format.End(kUsage, &events);
  std::vector<OrderedJson> parsed;
  for (const ServerEvent& event : events) {
    parsed.push_back(OrderedJson::parse(event.data));
    if (!event.name.empty()) {
      EXPECT_EQ(parsed.back()["type"], event.name);
    }
  }
  return parsed;
}

OrderedJson WholeOf(AnswerFormat& format, FinishedChoice choice) {
  AnswerText text(/*lease=*/nullptr);
  std::vector<FinishedChoice> choices;
  choices.push_back(std::move(choice));
  format.Whole(std::move(choices), kUsage, &text);
  return OrderedJson::parse(text.Take());
}

OrderedJson WithoutIds(OrderedJson items) {
  for (OrderedJson& item : items) item.erase("id");
  return items;
}

TEST(ResponsesFormat, AStreamEndsWithWhatTheWholeSays) {
  OrderedJson stored;
  const auto sink = [&](const std::string&, const OrderedJson& response) { stored = response; };
  ResponsesFormat whole_format("m", OrderedJson::object(), sink);
  const OrderedJson whole =
      WholeOf(whole_format, {Joined(), {"tool_calls", nullptr}, nullptr, nullptr});
  EXPECT_EQ(stored, whole);
  std::vector<std::string> types;
  for (const OrderedJson& item : whole["output"]) types.push_back(item["type"]);
  EXPECT_THAT(types, ElementsAre("reasoning", "message", "function_call", "function_call"));
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_EQ(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 3);

  ResponsesFormat format("m", OrderedJson::object(), nullptr);
  const auto events = Stream(format, {"tool_calls", nullptr});
  const OrderedJson& last = events.back();
  EXPECT_EQ(last["type"], "response.completed");
  EXPECT_EQ(WithoutIds(last["response"]["output"]), WithoutIds(whole["output"]));
  std::string arguments;
  for (const OrderedJson& event : events) {
    if (event["type"] == "response.function_call_arguments.delta") arguments += event["delta"];
  }
  EXPECT_EQ(arguments, R"({"a":2}{"a":2})");
}

TEST(ResponsesFormat, AnAnswerBecomesTheMessageItWas) {
  OrderedJson message;
  ResponsesFormat format("m", OrderedJson::object(), [&](const auto&, const OrderedJson& response) {
    message = OutputToMessage(response["output"]);
  });
  WholeOf(format, {Joined(), {"tool_calls", nullptr}, nullptr, nullptr});
  EXPECT_EQ(message["reasoning"], "Hm.");
  EXPECT_EQ(message["content"], "Let me see.");
  EXPECT_EQ(message["tool_calls"].size(), 2u);
}

TEST(ResponsesFormat, AFailureIsTheLastEvent) {
  ResponsesFormat format("m", OrderedJson::object(), nullptr);
  ServerEvents events;
  format.Begin(kUsage, &events);
  format.Fail(InternalError(), &events);
  EXPECT_EQ(events.back().name, "response.failed");
  EXPECT_EQ(OrderedJson::parse(events.back().data)["response"]["status"], "failed");
}

TEST(OllamaFormat, LinesJoinedAreTheWhole) {
  OllamaFormat whole_format(OllamaKind::kChat, "m");
  const OrderedJson whole =
      WholeOf(whole_format, {Joined(), {"tool_calls", nullptr}, nullptr, nullptr});
  EXPECT_EQ(whole["message"]["content"], "Let me see.");
  EXPECT_EQ(whole["message"]["thinking"], "Hm.");
  ASSERT_EQ(whole["message"]["tool_calls"].size(), 2u);
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["arguments"]["a"], 2);
  EXPECT_EQ(whole["eval_count"], 7);

  OllamaFormat format(OllamaKind::kChat, "m");
  EXPECT_EQ(format.framing(), StreamFraming::kJsonLines);
  std::string content, thinking;
  OrderedJson calls = OrderedJson::array();
  for (const OrderedJson& line : Stream(format, {"tool_calls", nullptr})) {
    const OrderedJson& message = line["message"];
    content += message["content"];
    if (message.contains("thinking")) thinking += message["thinking"];
    if (message.contains("tool_calls")) calls.push_back(message["tool_calls"][0]);
  }
  EXPECT_EQ(content, "Let me see.");
  EXPECT_EQ(thinking, "Hm.");
  EXPECT_EQ(calls, whole["message"]["tool_calls"]);
}

TEST(OllamaFormat, ACallThatWasCutIsText) {
  OllamaFormat format(OllamaKind::kGenerate, "m");
  ChoiceDelta delta;
  delta.tool_calls.push_back({0, "call_0", "add", R"({"a":)"});
  const FinishInfo cut{"length", nullptr};
  ServerEvents events;
  format.Delta(0, delta, &cut, /*is_first=*/true, kUsage, &events);
  format.End(kUsage, &events);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(OrderedJson::parse(events[0].data)["response"], R"(add{"a":)");
  EXPECT_EQ(OrderedJson::parse(events[1].data)["done_reason"], "length");
}

TEST(MessagesFormat, AStreamHoldsTheBlocksOfTheWhole) {
  MessagesFormat whole_format("m");
  const OrderedJson whole =
      WholeOf(whole_format, {Joined(), {"tool_calls", nullptr}, nullptr, nullptr});
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(whole["content"].size(), 4u);
  EXPECT_EQ(whole["content"][0]["thinking"], "Hm.");
  EXPECT_EQ(whole["content"][1]["text"], "Let me see.");
  EXPECT_EQ(whole["content"][3]["input"], OrderedJson::parse(R"({"a": 2})"));
  EXPECT_EQ(whole["usage"]["input_tokens"], 6);
  EXPECT_EQ(whole["usage"]["cache_read_input_tokens"], 4);

  MessagesFormat format("m");
  const auto events = Stream(format, {"tool_calls", nullptr});
  std::vector<std::string> kinds;
  std::string text;
  std::string json;
  for (const OrderedJson& event : events) {
    if (event["type"] == "content_block_start") kinds.push_back(event["content_block"]["type"]);
    if (event["type"] != "content_block_delta") continue;
    if (event["delta"]["type"] == "text_delta") text += event["delta"]["text"];
    if (event["delta"]["type"] == "input_json_delta") json += event["delta"]["partial_json"];
  }
  EXPECT_THAT(kinds, ElementsAre("thinking", "text", "tool_use", "tool_use"));
  EXPECT_EQ(text, "Let me see.");
  EXPECT_EQ(json, R"({"a":2}{"a":2})");
  EXPECT_EQ(events[events.size() - 2]["delta"]["stop_reason"], "tool_use");
}

TEST(MessagesFormat, StopReasonsHaveTheirNames) {
  const auto reason_of = [](const FinishInfo& finish) {
    MessagesFormat format("m");
    return WholeOf(format, {Text("x"), finish, nullptr, nullptr})["stop_reason"];
  };
  EXPECT_EQ(reason_of({"stop", nullptr}), "end_turn");
  EXPECT_EQ(reason_of({"stop", "###"}), "stop_sequence");
  EXPECT_EQ(reason_of({"length", nullptr}), "max_tokens");
}

TEST(MessagesRequest, ResultsOfToolsComeBeforeWhatTheUserSays) {
  OrderedJson chat;
  const OrderedJson body = OrderedJson::parse(R"({"max_tokens": 5, "top_k": 3,
      "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
      "messages": [{"role": "user", "content": [
        {"type": "text", "text": "And?"}, {"type": "tool_result", "tool_use_id": "t", "content": "5"}]}]})");
  ASSERT_FALSE(MessagesToChat(body, true, &chat));
  EXPECT_EQ(chat["messages"][0]["role"], "tool");
  EXPECT_EQ(chat["messages"][1]["content"][0]["text"], "And?");
  EXPECT_EQ(chat["tool_choice"], "required");
  EXPECT_EQ(chat["parallel_tool_calls"], false);
  EXPECT_EQ(chat["top_k"], 3);
}

TEST(ResponsesRequest, ItemsOfOneTurnAreOneMessage) {
  OrderedJson chat;
  size_t num_instructions = 0;
  ResponsesExtras extras;
  const OrderedJson body = OrderedJson::parse(R"({"instructions": "Brief.", "seed": 5, "input": [
      {"role": "user", "content": "2+3?"},
      {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
      {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": "5"}],
      "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}})");
  ASSERT_FALSE(ResponsesToChat(body, &chat, &num_instructions, &extras));
  EXPECT_EQ(num_instructions, 1u);
  ASSERT_EQ(chat["messages"].size(), 4u);
  EXPECT_EQ(chat["messages"][2]["reasoning"], "Hm.");
  EXPECT_EQ(chat["messages"][2]["content"][0]["text"], "Wait.");
  EXPECT_EQ(chat["messages"][2]["tool_calls"].size(), 1u);
  EXPECT_EQ(chat["seed"], 5);
  EXPECT_EQ(chat["response_format"]["json_schema"]["name"], "n");
}

StoredResponse Stored(std::string messages) { return {std::move(messages), "[]", "{}"}; }

TEST(ResponseStore, ForgetsTheOnesUsedLongestAgo) {
  ResponseStore store(/*max_responses=*/2, /*max_bytes=*/1000);
  store.Put("a", Stored("[1]"));
  store.Put("b", Stored("[2]"));
  EXPECT_TRUE(store.Get("a"));
  store.Put("c", Stored("[3]"));
  EXPECT_FALSE(store.Get("b"));
  EXPECT_EQ(store.Get("a")->messages, "[1]");
  store.Put("d", Stored(std::string(996, 'x')));
  EXPECT_TRUE(store.Get("d"));
  EXPECT_FALSE(store.Get("a"));
  store.Put("e", Stored(std::string(2000, 'x')));
  EXPECT_FALSE(store.Get("e"));
}

TEST(ResponseStore, WhatIsRemovedTakesNoMemory) {
  ResponseStore store(/*max_responses=*/2, /*max_bytes=*/1000);
  store.Put("a", Stored("[1]"));
  EXPECT_EQ(store.num_bytes(), 7u);
  EXPECT_TRUE(store.Remove("a"));
  EXPECT_FALSE(store.Remove("a"));
  EXPECT_EQ(store.Get("a"), nullptr);
  EXPECT_EQ(store.num_bytes(), 0u);
}

TEST(ResponsesToChat, ToolsThatAreNotRunHereAreLeftOut) {
  OrderedJson body = OrderedJson::parse(R"({"input": "x", "tools": [{"type": "web_search"},
      {"type": "function", "name": "f", "parameters": {}}, {"type": "custom", "name": "c"}]})");
  OrderedJson chat;
  size_t num_instructions = 0;
  ResponsesExtras extras;
  ASSERT_FALSE(ResponsesToChat(body, &chat, &num_instructions, &extras));
  ASSERT_EQ(chat["tools"].size(), 1u);
  EXPECT_EQ(chat["tools"][0]["function"]["name"], "f");
  EXPECT_EQ(extras.echoed["tools"].size(), 3u);
  body["tools"][0] = 5;
  EXPECT_EQ(ResponsesToChat(body, &chat, &num_instructions, &extras)->param, "tools[0]");
}

TEST(ResponsesToChat, LogProbabilitiesAreRefusedAndOtherExtrasTaken) {
  OrderedJson chat;
  size_t num_instructions = 0;
  ResponsesExtras extras;
  const auto ask = [&](const char* name) {
    return ResponsesToChat({{"input", "x"}, {"include", OrderedJson::array({name})}}, &chat,
                           &num_instructions, &extras);
  };
  EXPECT_FALSE(ask("reasoning.encrypted_content"));
  EXPECT_EQ(ask("message.output_text.logprobs")->param, "include");
}

OrderedJson ChatOfMessage(OrderedJson system, OrderedJson content) {
  OrderedJson chat;
  const OrderedJson body = {
      {"max_tokens", 5},
      {"system", std::move(system)},
      {"messages", OrderedJson::array({{{"role", "user"}, {"content", std::move(content)}}})}};
  const ApiStatus error = MessagesToChat(body, /*needs_limit=*/true, &chat);
  return error ? OrderedJson(error->message) : chat["messages"];
}

TEST(MessagesToChat, ALineThatChangesEachTimeDoesNotReachThePrompt) {
  const OrderedJson billing = {{"type", "text"}, {"text", "x-anthropic-billing-header: cch=7;"}};
  const OrderedJson rules = {{"type", "text"}, {"text", "Be brief."}};
  EXPECT_EQ(ChatOfMessage(OrderedJson::array({billing, rules}), "Hi")[0]["content"], "Be brief.");
  EXPECT_EQ(ChatOfMessage("x-anthropic-billing-header: a\nBe brief.", "Hi")[0]["content"],
            "Be brief.");
  EXPECT_EQ(ChatOfMessage(OrderedJson::array({billing}), "Hi")[0]["role"], "user");
}

TEST(MessagesToChat, DocumentsOfTextAreText) {
  const auto document = [](OrderedJson source) {
    return OrderedJson::array(
        {{{"type", "document"}, {"title", "Report"}, {"source", std::move(source)}},
         {{"type", "text"}, {"text", "Sum up."}}});
  };
  const OrderedJson plain = {{"type", "text"}, {"media_type", "text/plain"}, {"data", "All well."}};
  const OrderedJson blocks = {
      {"type", "content"},
      {"content", OrderedJson::array({{{"type", "text"}, {"text", "All well."}}})}};
  for (const OrderedJson& source : {plain, blocks}) {
    const OrderedJson parts = ChatOfMessage("", document(source))[0]["content"];
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_EQ(parts[0], OrderedJson({{"type", "text"}, {"text", "Report\n\nAll well."}}));
  }
  const OrderedJson pdf = {{"type", "base64"}, {"media_type", "application/pdf"}, {"data", "eA=="}};
  EXPECT_THAT(ChatOfMessage("", document(pdf)).get<std::string>(),
              testing::HasSubstr("documents of type 'base64' are not read here"));
}

}  // namespace
}  // namespace lapidary
