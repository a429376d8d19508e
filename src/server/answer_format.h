// How an answer is written on the wire. Each API has its own format; what is generated, and when,
// is not its business.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/answer_memory.h"
#include "server/choice_stream.h"
#include "server/http_types.h"

namespace lapidary {

// Drafts that an answer took, and that it did not.
struct DraftTokens {
  int64_t accepted = 0;
  int64_t rejected = 0;

  void Add(const DraftUsage& usage) {
    accepted += usage.accepted_tokens;
    rejected += usage.draft_tokens - usage.accepted_tokens;
  }
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;     // of the prompt
  int64_t reasoning_tokens = 0;  // of the completion
  DraftTokens drafts = {};
  std::array<DraftTokens, kNumDraftSources> drafts_by_source = {};

  OrderedJson ToJson() const;
};

struct FinishInfo {
  std::string reason;       // "stop", "length", "tool_calls"
  OrderedJson stop_reason;  // the stop string or token id that was asked for, else null
};

struct FinishedChoice {
  ChoiceDelta output;
  FinishInfo finish;
  const std::vector<int32_t>* prompt_ids = nullptr;
  const std::vector<SampledToken>* prompt_logprobs = nullptr;  // from the second token on
};

// A server-sent event; without a name the data says what it is.
struct ServerEvent {
  std::string name;
  std::string data;
};
using ServerEvents = std::vector<ServerEvent>;

// Serves one request. Either Whole is called, or Begin, Delta..., End; Fail may come in place of
// any event but the first.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;

  // Before anything else: a stream goes on with this call, whose beginning the client has.
  virtual void GoOnWithCall(const ChoiceDelta::ToolCall&) {}

  virtual void Whole(std::vector<FinishedChoice> choices, const Usage& usage, AnswerText* text) = 0;

  virtual void Begin(const Usage& usage, ServerEvents* events) = 0;
  // What a choice has to add; `finish` with the last of it. `is_first`: nothing of this choice was
  // sent before. The delta may be empty.
  virtual void Delta(int index, const ChoiceDelta& delta, const FinishInfo* finish, bool is_first,
                     const Usage& usage, ServerEvents* events) = 0;
  virtual void End(const Usage& usage, ServerEvents* events) = 0;
  virtual void Fail(const ApiError& error, ServerEvents* events) = 0;

  virtual StreamFraming framing() const { return StreamFraming::kServerSentEvents; }
  // Of what Whole writes.
  virtual const char* content_type() const { return "application/json"; }

  // The body of an answer that is nothing but an error.
  virtual OrderedJson ErrorBody(const ApiError& error) const { return error.ToJson(); }
};

// Seconds since 1970.
int64_t UnixTime();
int64_t UnixNanoseconds();

}  // namespace lapidary
