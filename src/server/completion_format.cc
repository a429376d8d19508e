#include "server/completion_format.h"

namespace lapidary {

CompletionFormat::CompletionFormat(ApiKind kind, const ServedModel& model,
                                   const GenerationRequest& request)
    : kind_(kind),
      json_(kind, model, request),
      include_usage_(request.include_usage),
      continuous_usage_(request.continuous_usage) {}

void CompletionFormat::Whole(std::vector<FinishedChoice> choices, const Usage& usage,
                             AnswerText* text) {
  json_.Whole(choices, usage, text);
}

void CompletionFormat::Begin(const Usage&, ServerEvents*) {}

void CompletionFormat::Delta(int index, const ChoiceDelta& delta, const FinishInfo* finish,
                             bool is_first, const Usage& usage, ServerEvents* events) {
  OrderedJson tail = is_first ? json_.FirstFields() : OrderedJson::object();
  if (include_usage_) tail["usage"] = continuous_usage_ ? usage.ToJson() : OrderedJson(nullptr);
  const bool sends_role = is_first && kind_ == ApiKind::kChat;
  if (sends_role) {
    OrderedJson chunk = json_.RoleChunk(index);
    chunk.update(tail);
    events->push_back({"", DumpJson(chunk)});
    tail.erase("seed");
  }
  if (sends_role && !delta.has_text() && finish == nullptr) return;
  events->push_back({"", json_.Chunk(index, delta, finish, tail)});
}

void CompletionFormat::End(const Usage& usage, ServerEvents* events) {
  if (include_usage_) events->push_back({"", DumpJson(json_.UsageChunk(usage))});
  events->push_back({"", "[DONE]"});
}

void CompletionFormat::Fail(const ApiError& error, ServerEvents* events) {
  events->push_back({"", DumpJson(error.ToJson())});
  events->push_back({"", "[DONE]"});
}

}  // namespace lapidary
