// The JSON of chat and text completions, and of answers in tokens, whole and in chunks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/answer_format.h"
#include "server/choice_stream.h"
#include "server/served_model.h"

namespace lapidary {

enum class ApiKind { kChat, kCompletion, kTokens };

// Builds what one request is answered with. `model` must outlive this.
class ResponseJson {
 public:
  ResponseJson(ApiKind kind, const ServedModel& model, const GenerationRequest& request);

  // Log-probabilities are written token by token: as a tree of values they would take six times
  // their text. A choice's own are freed behind it.
  void Whole(std::vector<FinishedChoice>& choices, const Usage& usage, AnswerText* text) const;

  // What the first chunk of a choice says beside it: the seed, if the server made it.
  OrderedJson FirstFields() const;
  // A choice's first chunk of a chat, which names the role; the other kind has none.
  OrderedJson RoleChunk(int index) const;
  // A chunk of one choice; `finish` in its last one. The fields of `tail` come last.
  std::string Chunk(int index, const ChoiceDelta& delta, const FinishInfo* finish,
                    const OrderedJson& tail) const;
  OrderedJson UsageChunk(const Usage& usage) const;

 private:
  using Logprobs = std::vector<ChoiceDelta::Logprob>;

  // As vLLM's `prompt_logprobs`: for each token the likeliest and itself, by id; null for the
  // first. `logprobs` begin at the second.
  void WritePromptLogprobs(const std::vector<int32_t>& ids,
                           const std::vector<SampledToken>& logprobs, AnswerText* text) const;
  OrderedJson PromptLogprob(const SampledToken& token) const;
  OrderedJson Head(bool is_chunk) const;
  OrderedJson Message(const ChoiceDelta& output) const;
  OrderedJson Delta(const ChoiceDelta& delta) const;
  void WriteLogprobs(const Logprobs& logprobs, AnswerText* text) const;
  // Of one token: of a chat, and of a text what stands beside its likeliest.
  OrderedJson ChatLogprob(const ChoiceDelta::Logprob& logprob) const;
  OrderedJson TopLogprobs(const ChoiceDelta::Logprob& logprob) const;
  OrderedJson TokenJson(int32_t id, float logprob) const;

  const ApiKind kind_;
  const ServedModel& model_;
  const std::string model_name_;  // an adapter's, if one answers
  const bool wants_logprobs_;
  const bool wants_token_ids_;
  const int32_t num_prompt_logprobs_;  // -1: none
  const std::optional<uint64_t> made_seed_;
  const std::string id_;
  const int64_t created_;
};

}  // namespace lapidary
