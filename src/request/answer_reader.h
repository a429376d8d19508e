// Turns the engine's events of one answer into its text, thoughts and tool calls, and tells why and
// where it ends. The server, the library and the commands all read answers by it.
//
//   AnswerReader reader(tokenizer, options);
//   for each event: const AnswerNews news = reader.Read(event); if (news.end) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "front/answer_stream.h"

namespace lapidary {

struct AnswerReaderOptions {
  bool skip_special = true;                  // special tokens have no text
  std::vector<std::string> stop = {};        // checked (StopStrings::Create)
  bool include_stop_text = false;            // the text keeps the stop string
  int32_t min_tokens = 0;                    // a stop string does not count before this many tokens
  std::vector<int32_t> stop_token_ids = {};  // that the request named
  bool single_call = false;                  // the answer ends with its first call
  std::optional<OutputParserOptions> parser = {};  // of a chat; without one all text is content
};

struct AnswerEnd {
  enum class Reason { kStop, kLength, kToolCalls, kCancelled, kError };
  Reason reason = Reason::kStop;
  std::string stop_string = {};  // the one that ended it
  int32_t stop_token_id = -1;    // the one of stop_token_ids that ended it
};

// What one event adds to an answer.
struct AnswerNews {
  std::vector<OutputEvent> output;  // texts and calls that are new; often none
  // Tokens of the event, from its first on, that belong to the answer. After a stop string none
  // does.
  size_t num_tokens = 0;
  bool has_stop_token = false;       // the last of them stopped the answer, and has no text
  std::vector<size_t> text_offsets;  // characters of the answer before each of them
  // Once: as soon as the answer is complete, which may be before the engine's last event.
  std::optional<AnswerEnd> end;
};

class AnswerReader {
 public:
  // `tokenizer` must outlive this; null: the answer has tokens and no text.
  AnswerReader(const Tokenizer* tokenizer, AnswerReaderOptions options);

  // Nothing is read any more once the answer is complete.
  AnswerNews Read(const RequestEvent& event);

  // By a stop string or its only call: the engine need not go on.
  bool is_complete() const { return is_complete_; }
  int num_tool_calls() const { return num_tool_calls_; }  // that came to their end
  // Tokens of thoughts so far, with those that open and close them.
  int num_reasoning_tokens() const { return num_reasoning_tokens_; }
  // The stop string that was found; null: none.
  const std::string* matched_stop() const;

 private:
  void Push(int32_t id, std::vector<OutputEvent>* output);
  // Drops calls after the only one that is wanted, and counts the others.
  void TakeCalls(size_t first, std::vector<OutputEvent>* output);
  AnswerEnd MakeEnd(const RequestEvent& event, bool has_stop_token) const;

  std::optional<AnswerStream> text_;
  std::vector<std::string> stop_;
  std::vector<int32_t> stop_token_ids_;
  bool single_call_;
  bool has_ended_ = false;
  bool is_complete_ = false;
  int num_tool_calls_ = 0;
  int num_reasoning_tokens_ = 0;
};

}  // namespace lapidary
