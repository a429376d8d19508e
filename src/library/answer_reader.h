// Turns the engine's events of one answer into what a caller sees.
#pragma once

#include <optional>

#include "front/answer_stream.h"
#include "library/session_core.h"

namespace lapidary::v0 {

class AnswerReader {
 public:
  // `tokenizer` must outlive this; null: there is no text.
  AnswerReader(const Tokenizer* tokenizer, const Request& request);

  // What the event brings: the last one brings `finish`.
  Answer Take(const RequestEvent& event);
  // The answer is complete by its text: nothing more is taken but the last event.
  bool is_cut() const { return is_cut_; }

 private:
  void Push(int32_t id, Answer& answer);
  void AddText(Answer& answer);
  Finish FinishOf(const RequestEvent& event) const;

  std::optional<AnswerStream> text_;
  std::vector<std::string> stop_;
  std::vector<int32_t> stop_token_ids_;
  bool single_call_ = false;
  // A call is handed out when its arguments are known to parse; before, only its name is.
  std::string call_name_;
  int num_calls_ = 0;
  bool is_cut_ = false;
  std::vector<OutputEvent> events_;  // scratch
};

Token MakeToken(const SampledToken& token);

}  // namespace lapidary::v0
