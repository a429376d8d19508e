#include "server/transcription_format.h"

namespace lapidary {
namespace {

OrderedJson UsageJson(const Usage& usage) {
  return {{"type", "tokens"},
          {"input_tokens", usage.prompt_tokens},
          {"output_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

}  // namespace

void TranscriptionFormat::Whole(std::vector<FinishedChoice> choices, const Usage& usage,
                                AnswerText* text) {
  text->Append(DumpJson({{"text", choices[0].output.content}, {"usage", UsageJson(usage)}}));
}

void TranscriptionFormat::Begin(const Usage&, ServerEvents*) {}

void TranscriptionFormat::Delta(int, const ChoiceDelta& delta, const FinishInfo*, bool,
                                const Usage&, ServerEvents* events) {
  if (delta.content.empty()) return;
  text_ += delta.content;
  events->push_back({"", DumpJson({{"type", "transcript.text.delta"}, {"delta", delta.content}})});
}

void TranscriptionFormat::End(const Usage& usage, ServerEvents* events) {
  events->push_back(
      {"",
       DumpJson({{"type", "transcript.text.done"}, {"text", text_}, {"usage", UsageJson(usage)}})});
}

void TranscriptionFormat::Fail(const ApiError& error, ServerEvents* events) {
  events->push_back({"", DumpJson(error.ToJson())});
}

}  // namespace lapidary
