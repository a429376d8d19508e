// Transcriptions as OpenAI's clients read them.
#pragma once

#include <string>

#include "server/answer_format.h"

namespace lapidary {

class TranscriptionFormat final : public AnswerFormat {
 public:
  void Whole(std::vector<FinishedChoice> choices, const Usage& usage, AnswerText* text) override;
  void Begin(const Usage& usage, ServerEvents* events) override;
  void Delta(int index, const ChoiceDelta& delta, const FinishInfo* finish, bool is_first,
             const Usage& usage, ServerEvents* events) override;
  void End(const Usage& usage, ServerEvents* events) override;
  void Fail(const ApiError& error, ServerEvents* events) override;

 private:
  std::string text_;  // of all deltas
};

}  // namespace lapidary
