// What a caller asks of an answer, in native types: what requests over HTTP, the library's, those
// of Python programs and the flags of the commands have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/constraint.h"
#include "sampling/sampling_params.h"

namespace lapidary {

struct AnswerRequest {
  // Complete: the checkpoint's defaults where the caller says nothing.
  SamplingParams sampling = {};
  std::optional<int32_t> max_tokens = {};  // none: the rest of the context; 0: the prompt alone
  bool clamps_max_tokens = false;          // more than the context leaves is what it leaves
  int32_t min_tokens = 0;                  // before them nothing stops it
  std::vector<std::string> bad_words = {};
  std::vector<std::string> stop = {};        // texts that end it
  std::vector<int32_t> stop_token_ids = {};  // beside the checkpoint's own
  bool include_stop_text = false;
  bool ignore_eos = false;
  bool skip_special = true;  // special tokens have no text

  // What the answer's text must be. Neither thoughts nor tools are part of it: they are added.
  std::optional<grammar::Constraint> constraint = {};
  std::string constraint_field = {};    // the field that says so
  bool constraint_takes_calls = false;  // tools may be called in place of that text
  int32_t thinking_token_budget = -1;   // of a chat: after it thoughts must end; -1: any number

  std::vector<int32_t> generated = {};  // the answer's first tokens, where it is to be continued
  std::string cache_salt = {};          // prefixes are shared only with requests that have the same
  int32_t priority = 0;                 // the lower, the earlier it is served
  int32_t num_prompt_logprobs = -1;     // -1: none; else the likeliest beside each prompt token
};

// Calls that an answer may or must have, as `tools` and `tool_choice` say.
struct ToolCallRules {
  std::vector<grammar::CallableTool> tools = {};  // that may be called
  bool must_call = false;                         // a call, and nothing else
  bool many_calls = true;                         // more than one
  // Calls are held to their form even where nothing else is: a tool is strict, or only some of the
  // tools may be called.
  bool has_form = false;
};

// What makes a prompt one of a chat: its answer has thoughts and calls beside its text.
struct ChatRules {
  bool thinks = false;  // thinking is on
  // In OpenAI's shape; their schemas say which type an unquoted argument has.
  std::optional<nlohmann::ordered_json> tools = {};
  ToolCallRules calls = {};
  bool single_call = false;  // the answer ends with its first call
};

}  // namespace lapidary
