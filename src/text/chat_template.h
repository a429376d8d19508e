// A checkpoint's chat template: a conversation in, prompt text out.
//
//   ASSIGN_OR_RETURN(auto chat, ChatTemplate::FromModelDir(model_dir));
//   ASSIGN_OR_RETURN(auto segments, chat.RenderPrompt(input));   // Serving: see below.
//
// The result is a list of segments. Special tokens may be recognised in trusted ones only (the
// template's own text); whatever came with the request is untrusted, so a message that spells
// "<turn|>" stays text. Thread safe after construction.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/jinja/template.h"
#include "text/text_segment.h"

namespace lapidary {

// A conversation in the shape of OpenAI's chat API. Optional members left out are undefined in the
// template, which is not the same as false or null.
struct ChatInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  std::optional<nlohmann::ordered_json> tools;
  bool add_generation_prompt = true;
  // The last message is an answer that was begun: the prompt ends where its text does.
  bool continue_final_message = false;
  std::optional<bool> enable_thinking;
  std::optional<bool> preserve_thinking;
  // Further variables (chat_template_kwargs); cannot replace those above.
  nlohmann::ordered_json extra = nlohmann::ordered_json::object();
  std::string bos_token = "<bos>";
  // What stands for each video part (front/video_text.h); not the template's business.
  std::vector<std::string> video_texts = {};
};

class ChatTemplate {
 public:
  static Result<ChatTemplate> FromString(std::string_view source, const jinja::Limits& limits = {});
  static Result<ChatTemplate> FromFile(const std::filesystem::path& path);
  // chat_template.jinja, else "chat_template" in tokenizer_config.json (a string, or a list of
  // named templates with one called "default").
  static Result<ChatTemplate> FromModelDir(const std::filesystem::path& model_dir);

  // The template's output for exactly this input.
  Result<std::vector<TextSegment>> Render(const ChatInput& input) const;

  // What serving uses: normalises the messages, renders, and makes sure that with
  // add_generation_prompt the prompt ends inside a model turn. (The templates end it with
  // "<turn|>\n" after a message with tool calls, results and text.)
  Result<std::vector<TextSegment>> RenderPrompt(ChatInput input) const;

 private:
  explicit ChatTemplate(jinja::Template compiled) : template_(std::move(compiled)) {}
  // What the template writes to open the model's turn after a user message.
  Result<std::string> GenerationPrompt(const ChatInput& input) const;

  jinja::Template template_;
};

// Tool-call arguments as the templates want them: objects. OpenAI clients send them as JSON text.
// Checks on the way that messages is a list of objects with a role.
Status NormalizeMessages(nlohmann::ordered_json* messages);

// {"messages": [...], "tools": [...], "enable_thinking": ..., ...}: the fields of ChatInput as
// JSON.
Result<ChatInput> ChatInputFromJson(const nlohmann::ordered_json& json);

std::string JoinSegments(const std::vector<TextSegment>& segments);

// True when text generated after this prompt is reasoning: it ends in an open channel.
bool EndsInsideThought(const std::vector<TextSegment>& segments);

}  // namespace lapidary
