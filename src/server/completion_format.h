// Chat and text completions as OpenAI's clients read them.
#pragma once

#include "server/answer_format.h"
#include "server/generation_request.h"
#include "server/response_json.h"

namespace lapidary {

class CompletionFormat final : public AnswerFormat {
 public:
  // `model` must outlive this.
  CompletionFormat(ApiKind kind, const ServedModel& model, const GenerationRequest& request);

  void Whole(std::vector<FinishedChoice> choices, const Usage& usage, AnswerText* text) override;
  void Begin(const Usage& usage, ServerEvents* events) override;
  void Delta(int index, const ChoiceDelta& delta, const FinishInfo* finish, bool is_first,
             const Usage& usage, ServerEvents* events) override;
  void End(const Usage& usage, ServerEvents* events) override;
  void Fail(const ApiError& error, ServerEvents* events) override;

 private:
  const ApiKind kind_;
  const ResponseJson json_;
  const bool include_usage_;
  const bool continuous_usage_;
};

}  // namespace lapidary
