// What /v1/chat/completions and /v1/completions ask for, in native types.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "grammar/constraint.h"
#include "media/image_size.h"
#include "sampling/sampling_params.h"
#include "server/api_error.h"
#include "server/media_parts.h"
#include "server/request_json.h"
#include "text/chat_template.h"

namespace lapidary {

// What the two have in common.
struct GenerationRequest {
  std::string model;  // empty: whichever is served
  SamplingParams sampling;
  bool has_seed = false;           // else the server made one
  std::vector<int32_t> generated;  // resume: the answer's first tokens, which are there already
  std::string cache_salt;          // prefixes are shared only with requests that have the same
  std::optional<grammar::Constraint> constraint;  // on the answer's text
  std::string constraint_field;                   // the field that says so
  int num_choices = 1;
  std::optional<int32_t> max_tokens;  // none: the rest of the context
  bool clamps_max_tokens = false;     // more than the context leaves is what it leaves
  int32_t min_tokens = 0;             // before them nothing stops it
  std::vector<std::string> bad_words;
  bool echo = false;                 // the prompt comes back in front of the text
  int32_t num_prompt_logprobs = -1;  // -1: none; else the likeliest beside each prompt token
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool include_stop_text = false;
  int32_t priority = 0;
  bool ignore_eos = false;
  bool skip_special = true;
  bool return_token_ids = false;
  // The answer is tokens, whatever their text: a stream tells of each. Set before it is parsed.
  bool answers_in_tokens = false;
  std::string answer_id;  // empty: made here
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage
  bool continuous_usage = false;  // and in every chunk what it is so far
};

struct ChatRequest {
  GenerationRequest generation;
  ChatInput input;
  RequestMedia media;         // behind the input's placeholders
  int max_soft_tokens = 0;    // of an image; 0: what the checkpoint says
  bool single_call = false;   // parallel_tool_calls: false
  bool strict_tools = false;  // set before the request is parsed: the server's rule
};

// Text, or token ids used as they stand.
using RawPrompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  GenerationRequest generation;
  std::vector<RawPrompt> prompts;
  bool add_special_tokens = true;  // <bos> in front of text
};

inline constexpr int kMaxChoices = 128;  // prompts times n

// `defaults`: what the checkpoint recommends where the request says nothing. Fields nobody knows
// are logged.
ApiStatus ParseChatRequest(const OrderedJson& body, const SamplingParams& defaults,
                           ChatRequest* request);
ApiStatus ParseCompletionRequest(const OrderedJson& body, const SamplingParams& defaults,
                                 CompletionRequest* request);

// messages, tools, chat_template_kwargs, add_generation_prompt, continue_final_message: shared with
// /tokenize.
void ReadChatInput(RequestFields* fields, ChatInput* input, RequestMedia* media);
// mm_processor_kwargs.max_soft_tokens, as vLLM takes it.
void ReadSoftTokenBudget(RequestFields* fields, int* max_soft_tokens);
// reasoning_effort, reasoning or thinking, as OpenAI, OpenRouter and Anthropic spell it: one switch
// here. `enable_thinking` among the template's variables goes before it.
void ReadThinking(RequestFields* fields, ChatInput* input);
void LogUnknownFields(const RequestFields& fields);

}  // namespace lapidary
