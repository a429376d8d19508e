// A conversation as messages in the shape of OpenAI's chat API; a prompt is rendered from them anew
// for every turn.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "text/chat_template.h"
#include "text/output_parser.h"

namespace lapidary {

class Conversation {
 public:
  // Empty: no system message.
  void set_system_prompt(std::string text) { system_prompt_ = std::move(text); }
  const std::string& system_prompt() const { return system_prompt_; }
  void set_thinking(bool thinking) { thinking_ = thinking; }
  bool thinking() const { return thinking_; }

  // Tool calls still open are answered with an error first. Placeholders of so many images and
  // sounds come before the text.
  void AddUser(const std::string& text, int64_t num_images = 0, int64_t num_sounds = 0);
  // The model's answer. One that has neither text nor calls (stopped too early) takes the question
  // back instead, and is false: models expect the roles to alternate.
  bool AddAnswer(const ParsedOutput& output);
  // Forgets the question that got no answer.
  void DropQuestion();
  struct Question {
    std::string text;
    int64_t num_images = 0;
    int64_t num_sounds = 0;
  };
  // Forgets the last question and all behind it, and returns it, if there is one.
  std::optional<Question> TakeBackQuestion();
  // Messages() of another run instead of what there is. An error leaves all as it was.
  Status Load(const nlohmann::ordered_json& messages);
  // Forgets every turn; the system prompt and the thinking switch stay.
  void Reset() { turns_ = nlohmann::ordered_json::array(); }
  bool empty() const { return turns_.empty(); }

  // The system message, if any, and the turns.
  nlohmann::ordered_json Messages() const;
  ChatInput Input() const;

 private:
  std::string system_prompt_;
  bool thinking_ = false;
  int num_calls_ = 0;
  nlohmann::ordered_json turns_ = nlohmann::ordered_json::array();
};

}  // namespace lapidary
