// From what a caller asks to what the engine runs: the one place where limits are checked, defaults
// filled in, and the form of an answer is put together of its constraint, its tools, its thoughts
// and the rules on its tokens. The server, the library and the commands all come through here.
//
//   PreparedRequest prepared;
//   if (auto bad = PrepareRequest(context, asked, &chat_rules, {prompt}, &prepared)) ...
//   if (prepared.form) prepared.requests[0].grammar = ...compile it...;
//   session.Start(prepared.requests[0]);    // and read by AnswerReader(..., prepared.reader)
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "front/text_model.h"
#include "request/answer_reader.h"
#include "request/answer_request.h"
#include "session/prompt_media.h"
#include "session/request.h"

namespace lapidary {

// How the caller's users write the name of a field.
enum class FieldStyle {
  kQuoted,  // 'min_tokens'
  kFlag,    // --min-tokens
};

struct RequestContext {
  const TextModel& text;
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;  // most tokens of a prompt and its answer
  FieldStyle style = FieldStyle::kQuoted;
};

// What is wrong with a request.
struct FieldError {
  std::string field;  // "min_tokens"; empty: the prompt
  std::string message;
  bool exceeds_context = false;
};

struct PreparedPrompt {
  ChatPrompt text;  // its placeholders are as long as its media
  PlacedMedia media = {};
};

struct PreparedRequest {
  // One for each prompt, complete but for the grammar of `form`.
  std::vector<Request> requests;
  std::optional<grammar::Constraint> form;  // to be compiled; none: the answer may be anything
  std::string form_field;                   // the field that errors of compiling it are about
  AnswerReaderOptions reader;
};

// What can be said before there is a prompt: numbers out of their ranges.
std::optional<FieldError> CheckAnswerRequest(const RequestContext& context,
                                             const AnswerRequest& asked);

// `chat`: null where the prompts are texts to be continued; else there is one prompt.
std::optional<FieldError> PrepareRequest(const RequestContext& context, const AnswerRequest& asked,
                                         const ChatRules* chat, std::vector<PreparedPrompt> prompts,
                                         PreparedRequest* prepared);

}  // namespace lapidary
