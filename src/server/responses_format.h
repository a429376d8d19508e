// The answer of /v1/responses: a list of typed items, streamed as events that tell how they grow.
#pragma once

#include <functional>
#include <memory>

#include "server/answer_format.h"
#include "server/item_stream.h"

namespace lapidary {

class ResponsesFormat final : public AnswerFormat, private ItemStream {
 public:
  // `echoed`: the request's fields that the response repeats. `on_output` gets a complete response
  // and its id.
  using OutputSink = std::function<void(const std::string& id, const OrderedJson& response)>;
  ResponsesFormat(std::string model_name, OrderedJson echoed, OutputSink on_output);

  void GoOnWithCall(const ChoiceDelta::ToolCall& call) override { CutCall(call); }
  void Whole(std::vector<FinishedChoice> choices, const Usage& usage, AnswerText* text) override;
  void Begin(const Usage& usage, ServerEvents* events) override;
  void Delta(int index, const ChoiceDelta& delta, const FinishInfo* finish, bool is_first,
             const Usage& usage, ServerEvents* events) override;
  void End(const Usage& usage, ServerEvents* events) override;
  void Fail(const ApiError& error, ServerEvents* events) override;

 private:
  std::string MakeId(Kind kind) override;
  void OnBegin(const Item& item) override;
  void OnText(const Item& item, const std::string& text) override;
  void OnEnd(const Item& item) override;

  OrderedJson Response(const char* status, const Usage* usage) const;
  OrderedJson CompleteResponse(const Usage& usage);
  // Events carry their type twice, and a number.
  void Emit(const std::string& type, OrderedJson fields);

  const std::string id_;
  const int64_t created_;
  const std::string model_name_;
  const OrderedJson echoed_;
  const OutputSink on_output_;
  std::vector<int32_t> token_ids_;  // of a whole answer, if asked for
  ServerEvents* events_ = nullptr;  // while one of the above runs; null: nothing is streamed
  int64_t next_number_ = 0;
  OrderedJson output_ = OrderedJson::array();  // items that are complete
  bool is_cut_ = false;                        // by its length
};

// Items of an answer as the assistant's message of the next request.
OrderedJson OutputToMessage(const OrderedJson& items);

}  // namespace lapidary
