// The answers of /api/chat and /api/generate, as Ollama's clients read them: one JSON object, or
// lines of them.
#pragma once

#include <chrono>

#include "server/answer_format.h"
#include "server/item_stream.h"
#include "server/ollama_request.h"

namespace lapidary {

class OllamaFormat final : public AnswerFormat, private ItemStream {
 public:
  OllamaFormat(OllamaKind kind, std::string model_name);

  void Whole(std::vector<FinishedChoice> choices, const Usage& usage, AnswerText* text) override;
  void Begin(const Usage& usage, ServerEvents* events) override;
  void Delta(int index, const ChoiceDelta& delta, const FinishInfo* finish, bool is_first,
             const Usage& usage, ServerEvents* events) override;
  void End(const Usage& usage, ServerEvents* events) override;
  void Fail(const ApiError& error, ServerEvents* events) override;
  OrderedJson ErrorBody(const ApiError& error) const override;
  StreamFraming framing() const override { return StreamFraming::kJsonLines; }

 private:
  using Clock = std::chrono::steady_clock;

  std::string MakeId(Kind kind) override;
  void OnBegin(const Item& item) override;
  void OnText(const Item& item, const std::string& text) override;
  void OnEnd(const Item& item) override;

  // The fields that every line begins with.
  OrderedJson Head() const;
  // A message of a chat, or its fields one level higher.
  void AddMessage(OrderedJson message, OrderedJson* line) const;
  void AddEnd(const Usage& usage, OrderedJson* line) const;
  void Emit(OrderedJson message);

  const OllamaKind kind_;
  const std::string model_name_;
  const Clock::time_point begin_ = Clock::now();
  std::optional<Clock::time_point> first_token_;  // of a stream
  ServerEvents* events_ = nullptr;                // while one of the above runs
  std::string finish_reason_ = "stop";
};

// {"error": "..."}
OrderedJson OllamaError(const ApiError& error);

// The answer to a request that asks nothing but that the model be loaded.
OrderedJson OllamaLoaded(OllamaKind kind, const std::string& model_name);

}  // namespace lapidary
