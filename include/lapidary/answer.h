// The answers of a session.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lapidary/export.h"

namespace lapidary::v0 {

struct Logprob {
  int32_t id = -1;
  float logprob = 0;
};

struct Token {
  int32_t id = -1;
  float logprob = 0;              // if asked for
  std::vector<Logprob> top = {};  // the most probable first, as many as were asked for
};

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

enum class Finish {
  kStop,       // a stop token or a stop string
  kLength,     // max_tokens
  kToolCalls,  // it ended, and wants tools to be called
  kAborted,    // cancelled, or the session was closed
  kError,      // the device failed, or nothing could be sampled
};
LAPIDARY_EXPORT const char* FinishName(Finish finish);  // "stop", "length", "tool_calls", ...

struct Usage {
  int32_t cached_prompt_tokens = 0;  // found in the prefix cache
  int32_t draft_tokens = 0;          // proposed by the assistant
  int32_t accepted_draft_tokens = 0;
};

// A part of one answer, or a whole one: parts joined are the whole, however they were cut.
struct Answer {
  std::string text = {};       // of a conversation: without thoughts and calls
  std::string reasoning = {};  // of a conversation
  std::vector<ToolCall> tool_calls = {};
  std::vector<Token> tokens = {};  // the token that stopped it is the last, and has no text
  std::optional<Finish> finish = {};
  std::string stop_string = {};  // the one that ended it
  int32_t stop_token_id = -1;    // the one of Request::stop_token_ids that ended it
  std::string error = {};        // with Finish::kError
  bool is_device_error = false;  // the session is of no use any more
  Usage usage = {};              // with finish
};

// News of one answer of a request.
struct Update {
  uint64_t request = 0;  // as Stream::Add returned it
  int answer_index = 0;  // [0, Request::num_answers)
  Answer news = {};
  // With the first answer: of the prompt tokens from the second on, those that are new. All come
  // before the first token of any answer.
  std::vector<Token> prompt_logprobs = {};
  bool is_last = false;  // of the request: all its answers have ended
};

// All that a request gave.
struct Output {
  std::vector<Answer> answers = {};
  std::vector<Token> prompt_logprobs = {};
};

}  // namespace lapidary::v0
