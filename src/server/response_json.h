// The JSON of chat and text completions, whole and in chunks.
#pragma once

#include <string>
#include <vector>

#include "server/choice_stream.h"
#include "server/served_model.h"

namespace lapidary {

enum class ApiKind { kChat, kCompletion };

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  // Drafts of the assistant that the answer took, and that it did not.
  int64_t accepted_draft_tokens = 0;
  int64_t rejected_draft_tokens = 0;

  OrderedJson ToJson() const;
};

struct FinishInfo {
  std::string reason;       // "stop", "length", "tool_calls"
  OrderedJson stop_reason;  // the stop string or token id that was asked for, else null
};

// Builds what one request is answered with. `model` must outlive this.
class ResponseJson {
 public:
  ResponseJson(ApiKind kind, const ServedModel& model, bool wants_logprobs);

  struct Choice {
    ChoiceDelta output;
    FinishInfo finish;
    OrderedJson prompt_logprobs;  // null: not asked for
  };
  OrderedJson Whole(const std::vector<Choice>& choices, const Usage& usage) const;

  // As vLLM's `prompt_logprobs`: for each token the `num_top` likeliest and itself, by id; null for
  // the first. `logprobs` begin at the second. Null altogether when num_top is -1.
  OrderedJson PromptLogprobs(const std::vector<int32_t>& ids,
                             const std::vector<SampledToken>& logprobs, int32_t num_top) const;

  // A choice's first chunk of a chat, which names the role; the other kind has none.
  OrderedJson RoleChunk(int index) const;
  // A chunk of one choice; `finish` in its last one.
  OrderedJson Chunk(int index, const ChoiceDelta& delta, const FinishInfo* finish) const;
  OrderedJson UsageChunk(const Usage& usage) const;

 private:
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
  const std::string id_;
  const int64_t created_;
};

}  // namespace lapidary
