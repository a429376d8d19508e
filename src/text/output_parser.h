// Turns the model's tokens into reasoning, content and tool calls.
//
//   output = { thought | text | call }
//   thought = <|channel> "thought\n" TEXT <channel|>
//   call    = <|tool_call> "call:" NAME object <tool_call|>
//
// Special tokens are recognised by id and never by text: a literal "<tool_call|>" inside a string
// argument is plain text. How the text between two special tokens is cut into pieces makes no
// difference to the result. No text the model wrote is lost: a call that cannot be parsed comes
// back as content, without its special tokens; quotes are plain ones there.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/tool_arguments.h"

namespace lapidary {

struct OutputTokenIds {
  int channel_open = 100;
  int channel_close = 101;
  int tool_call_open = 48;
  int tool_call_close = 49;
  int tool_response = 50;
  int quote = 52;
  int turn_end = 106;
  int eos = 1;
};

struct OutputParserOptions {
  OutputTokenIds ids;
  // The prompt ends inside an open channel (EndsInsideThought).
  bool starts_in_thought = false;
  // Take a bare "thought\n" as the very first text for an opened thought; for use with thinking
  // off, where some models write it without the channel token.
  bool accept_bare_thought = false;
  // The request's tools, in OpenAI's shape; their schemas settle the type of unquoted values.
  nlohmann::ordered_json tools;
  size_t max_call_bytes = 4 << 20;  // A longer call is returned as content.
  // Hand arguments out while they are written. A call that breaks behind its name then stays one,
  // cut where it broke: what was handed out cannot be taken back.
  bool stream_arguments = false;
};

struct OutputEvent {
  enum class Kind {
    kReasoning,          // text
    kContent,            // text
    kToolCallBegin,      // call_index, text = name
    kToolCallArguments,  // call_index, text = one JSON object; of streamed ones the next part
    kToolCallEnd,        // call_index
    kToolCallCancel,     // call_index: begun, but its arguments did not parse; content follows
  };

  Kind kind;
  std::string text;
  int call_index = -1;

  friend bool operator==(const OutputEvent&, const OutputEvent&) = default;
};

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);

  // One token: its id, and the text the streaming detokenizer released with it (for a special token
  // of the grammar the text is ignored). Events are appended.
  void Push(int token_id, std::string_view text, std::vector<OutputEvent>* events);
  // The output is over: flushes what was held back.
  void Finish(std::vector<OutputEvent>* events);

  // Whether the token is one of the grammar's special ones.
  bool IsSpecial(int token_id) const;

  // What comes next is reasoning, unless it closes the thought.
  bool in_thought() const { return state_ == State::kLabel || state_ == State::kThought; }

 private:
  enum class State {
    kStart,  // Nothing seen yet; a bare "thought\n" may follow.
    kContent,
    kLabel,  // In a thought, where its label may still follow.
    kThought,
    kCallHead,    // "call:NAME", up to the brace.
    kCallObject,  // Up to the matching brace.
    kCallTail,    // A parsed call, up to its closing token.
    kBrokenCall,  // Not a call after all: content, up to its closing token.
  };

  void PushSpecial(int token_id);
  void PushText(std::string_view text);
  void PushLabel(std::string_view text);
  void PushCallHead(char c);
  void PushCallObject(char c);
  void OpenThought();
  void OpenCall();
  void CloseThought();
  // The call ends here, by its own token or by another one.
  void CloseCall();
  void PushArguments(bool is_well_formed);
  void BreakCall();

  void EmitReasoning(std::string_view text);
  void Emit(OutputEvent::Kind kind, std::string_view text, int call_index = -1);

  OutputParserOptions options_;
  std::vector<OutputEvent>* events_ = nullptr;  // During Push and Finish.
  State state_;
  std::string held_;           // A possible beginning of "thought\n".
  bool held_newline_ = false;  // The last newline of the reasoning so far.
  ToolCallText call_;          // The call being read.
  bool call_announced_ = false;
  std::optional<ToolArgumentWriter> writer_;  // Of the call's arguments.
  std::string arguments_;                     // What it wrote and nobody was handed yet.
  int num_calls_ = 0;
};

struct ParsedToolCall {
  std::string name;
  nlohmann::ordered_json arguments;
};
struct ParsedOutput {
  std::string reasoning;
  std::string content;
  std::vector<ParsedToolCall> tool_calls;

  // Takes the parser's events as they come.
  void Add(const OutputEvent& event);
};

// The whole output at once. Knowing the end, it also reads text before a <channel|> that was never
// opened as reasoning, if something follows it.
ParsedOutput ParseAll(const std::vector<std::pair<int, std::string>>& tokens,
                      OutputParserOptions options);

}  // namespace lapidary
