#include "front/conversation.h"

#include <fmt/format.h>

#include <algorithm>

namespace lapidary {

using Json = nlohmann::ordered_json;

namespace {

// In the shape that AddAnswer gives them.
bool AreCalls(const Json& calls) {
  return calls.is_array() && std::all_of(calls.begin(), calls.end(), [](const Json& call) {
           return call.is_object() && call.contains("id") && call["id"].is_string() &&
                  call.contains("function") && call["function"].is_object() &&
                  call["function"].contains("name") && call["function"]["name"].is_string() &&
                  call["function"].contains("arguments");
         });
}

}  // namespace

void Conversation::AddUser(const std::string& text, int64_t num_images, int64_t num_sounds) {
  // Calls without results leave the model's turn open, so that nothing else could follow.
  const Json calls = turns_.empty() ? Json() : turns_.back().value("tool_calls", Json());
  for (const Json& call : calls) {
    turns_.push_back({{"role", "tool"},
                      {"tool_call_id", call["id"]},
                      {"content", "error: there are no tools in this conversation"}});
  }
  if (num_images + num_sounds == 0) {
    turns_.push_back({{"role", "user"}, {"content", text}});
    return;
  }
  Json parts = Json::array();
  for (int64_t idx = 0; idx < num_images; ++idx) parts.push_back({{"type", "image"}});
  for (int64_t idx = 0; idx < num_sounds; ++idx) parts.push_back({{"type", "audio"}});
  parts.push_back({{"type", "text"}, {"text", text}});
  turns_.push_back({{"role", "user"}, {"content", std::move(parts)}});
}

bool Conversation::AddAnswer(const ParsedOutput& output) {
  if (output.content.empty() && output.tool_calls.empty()) {
    DropQuestion();
    return false;
  }
  Json message = {{"role", "assistant"}, {"content", output.content}};
  if (!output.reasoning.empty()) message["reasoning"] = output.reasoning;
  for (const ParsedToolCall& call : output.tool_calls) {
    message["tool_calls"].push_back(
        {{"id", fmt::format("call_{}", num_calls_++)},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  turns_.push_back(std::move(message));
  return true;
}

void Conversation::DropQuestion() {
  if (!turns_.empty() && turns_.back()["role"] == "user") turns_.erase(turns_.size() - 1);
}

std::optional<Conversation::Question> Conversation::TakeBackQuestion() {
  for (size_t idx = turns_.size(); idx-- > 0;) {
    if (turns_[idx]["role"] != "user") continue;
    Question question;
    const Json& content = turns_[idx]["content"];
    if (content.is_string()) {
      question.text = content.get<std::string>();
    } else {  // as AddUser has written it
      for (const Json& part : content) {
        if (part["type"] == "image") ++question.num_images;
        if (part["type"] == "audio") ++question.num_sounds;
        if (part["type"] == "text") question.text = part["text"].get<std::string>();
      }
    }
    turns_.erase(turns_.begin() + static_cast<ptrdiff_t>(idx), turns_.end());
    return question;
  }
  return std::nullopt;
}

Status Conversation::Load(const Json& messages) {
  if (!messages.is_array()) return MakeError("it is no list of messages");
  std::string system_prompt;
  Json turns = Json::array();
  size_t number = 0;
  for (const Json& message : messages) {
    ++number;
    const std::string role =
        message.is_object() && message.contains("role") && message["role"].is_string()
            ? message["role"].get<std::string>()
            : "";
    const bool is_turn = role == "user" || role == "assistant" || role == "tool";
    const bool is_system = role == "system" && number == 1;
    if (!is_turn && !is_system) {
      return MakeError(
          "message {} is of no user, assistant or tool; 'system' may only be the first", number);
    }
    if (!message.contains("content") || !message["content"].is_string()) {
      return MakeError("message {} has no text as its content", number);
    }
    if (message.contains("tool_calls") &&
        !(role == "assistant" && AreCalls(message["tool_calls"]))) {
      return MakeError("message {} has 'tool_calls' that no answer has", number);
    }
    if (is_system) system_prompt = message["content"].get<std::string>();
    if (is_turn) turns.push_back(message);
  }
  system_prompt_ = std::move(system_prompt);
  turns_ = std::move(turns);
  return {};
}

Json Conversation::Messages() const {
  Json messages = Json::array();
  if (!system_prompt_.empty()) {
    messages.push_back({{"role", "system"}, {"content", system_prompt_}});
  }
  for (const Json& turn : turns_) messages.push_back(turn);
  return messages;
}

ChatInput Conversation::Input() const {
  ChatInput input;
  input.messages = Messages();
  if (thinking_) input.enable_thinking = true;
  return input;
}

}  // namespace lapidary
