// The answer of /v1/messages, as Anthropic's clients read it: blocks of thinking, text and tool
// use.
#pragma once

#include "server/answer_format.h"
#include "server/item_stream.h"

namespace lapidary {

class MessagesFormat final : public AnswerFormat, private ItemStream {
 public:
  explicit MessagesFormat(std::string model_name);

  void GoOnWithCall(const ChoiceDelta::ToolCall& call) override { CutCall(call); }
  void Whole(std::vector<FinishedChoice> choices, const Usage& usage, AnswerText* text) override;
  void Begin(const Usage& usage, ServerEvents* events) override;
  void Delta(int index, const ChoiceDelta& delta, const FinishInfo* finish, bool is_first,
             const Usage& usage, ServerEvents* events) override;
  void End(const Usage& usage, ServerEvents* events) override;
  void Fail(const ApiError& error, ServerEvents* events) override;
  OrderedJson ErrorBody(const ApiError& error) const override;

 private:
  std::string MakeId(Kind kind) override;
  void OnBegin(const Item& item) override;
  void OnText(const Item& item, const std::string& text) override;
  void OnEnd(const Item& item) override;

  OrderedJson Message(const Usage& usage) const;
  void Emit(const std::string& type, OrderedJson fields);

  const std::string id_;
  const std::string model_name_;
  ServerEvents* events_ = nullptr;  // while one of the above runs; null: nothing is streamed
  OrderedJson content_ = OrderedJson::array();  // blocks that are complete
  OrderedJson stop_reason_ = nullptr;
  OrderedJson stop_sequence_ = nullptr;
};

// {"type": "error", "error": {...}}
OrderedJson MessagesError(const ApiError& error);

}  // namespace lapidary
