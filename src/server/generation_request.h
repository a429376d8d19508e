// What /v1/chat/completions and /v1/completions ask for, in native types.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "media/image_size.h"
#include "request/answer_request.h"
#include "server/api_error.h"
#include "server/media_parts.h"
#include "server/request_json.h"
#include "text/chat_template.h"

namespace lapidary {

// What the two have in common.
struct GenerationRequest : AnswerRequest {
  std::string model;      // empty: whichever is served
  bool has_seed = false;  // else the server made one
  int num_choices = 1;
  bool echo = false;  // the prompt comes back in front of the text
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
  RequestMedia media;       // behind the input's placeholders
  int max_soft_tokens = 0;  // of an image; 0: what the checkpoint says
  ToolCallRules calls;
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
// How the answer to a chat is read.
ChatRules MakeChatRules(const ChatInput& input, ToolCallRules calls, bool single_call);
void LogUnknownFields(const RequestFields& fields);

}  // namespace lapidary
