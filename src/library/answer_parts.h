// One answer in the types of the public interface, part by part as the engine's events come.
#pragma once

#include "library/session_core.h"
#include "request/answer_reader.h"

namespace lapidary::v0 {

class AnswerParts {
 public:
  // `tokenizer` must outlive this; null: there is no text.
  AnswerParts(const Tokenizer* tokenizer, AnswerReaderOptions options)
      : reader_(tokenizer, std::move(options)) {}

  // What the event brings: the last one brings `finish`.
  Answer Take(const RequestEvent& event);
  // The answer is complete by its text: nothing more is taken but the last event.
  bool is_complete() const { return reader_.is_complete(); }

 private:
  AnswerReader reader_;
  AnswerEnd end_;
  std::string call_name_;  // of the call whose arguments are still to come
};

Token MakeToken(const SampledToken& token);

}  // namespace lapidary::v0
