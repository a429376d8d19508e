// Transcriptions as OpenAI's clients read them.
#pragma once

#include <string>

#include "server/answer_format.h"

namespace lapidary {

enum class TranscriptionKind { kJson, kText, kVerboseJson, kSrt, kVtt };

// The model writes down what is said and not when: its text is one segment, as long as what it
// heard.
class TranscriptionFormat final : public AnswerFormat {
 public:
  struct Options {
    TranscriptionKind kind = TranscriptionKind::kJson;
    std::string language = {};  // empty: not said
    double seconds = 0.0;       // of the sound, as far as it was heard
  };
  TranscriptionFormat() = default;
  explicit TranscriptionFormat(Options options) : options_(std::move(options)) {}

  void Whole(std::vector<FinishedChoice> choices, const Usage& usage, AnswerText* text) override;
  void Begin(const Usage& usage, ServerEvents* events) override;
  void Delta(int index, const ChoiceDelta& delta, const FinishInfo* finish, bool is_first,
             const Usage& usage, ServerEvents* events) override;
  void End(const Usage& usage, ServerEvents* events) override;
  void Fail(const ApiError& error, ServerEvents* events) override;
  const char* content_type() const override;

 private:
  const Options options_;
  std::string text_;  // of all deltas
};

}  // namespace lapidary
