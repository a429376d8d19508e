#include "front/conversation.h"

#include <fmt/format.h>

namespace lapidary {

using Json = nlohmann::ordered_json;

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
