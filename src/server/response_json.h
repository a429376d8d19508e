// The JSON of chat and text completions, whole and in chunks.
#pragma once

#include <string>
#include <vector>

#include "server/answer_format.h"
#include "server/choice_stream.h"
#include "server/served_model.h"

namespace lapidary {

enum class ApiKind { kChat, kCompletion };

// Builds what one request is answered with. `model` must outlive this.
class ResponseJson {
 public:
  ResponseJson(ApiKind kind, const ServedModel& model, const GenerationRequest& request);

  OrderedJson Whole(const std::vector<FinishedChoice>& choices, const Usage& usage) const;

  // A choice's first chunk of a chat, which names the role; the other kind has none.
  OrderedJson RoleChunk(int index) const;
  // A chunk of one choice; `finish` in its last one.
  OrderedJson Chunk(int index, const ChoiceDelta& delta, const FinishInfo* finish) const;
  OrderedJson UsageChunk(const Usage& usage) const;

 private:
  // As vLLM's `prompt_logprobs`: for each token the likeliest and itself, by id; null for the
  // first. `logprobs` begin at the second.
  OrderedJson PromptLogprobs(const std::vector<int32_t>& ids,
                             const std::vector<SampledToken>& logprobs) const;
  OrderedJson Head(bool is_chunk) const;
  OrderedJson Message(const ChoiceDelta& output) const;
  OrderedJson Delta(const ChoiceDelta& delta) const;
  OrderedJson ChunkOf(OrderedJson choice) const;
  OrderedJson Logprobs(const std::vector<ChoiceDelta::Logprob>& logprobs) const;
  OrderedJson ChatLogprobs(const std::vector<ChoiceDelta::Logprob>& logprobs) const;
  OrderedJson TextLogprobs(const std::vector<ChoiceDelta::Logprob>& logprobs) const;
  OrderedJson TokenJson(int32_t id, float logprob) const;

  const ApiKind kind_;
  const ServedModel& model_;
  const bool wants_logprobs_;
  const bool wants_token_ids_;
  const int32_t num_prompt_logprobs_;  // -1: none
  const std::string id_;
  const int64_t created_;
};

}  // namespace lapidary
