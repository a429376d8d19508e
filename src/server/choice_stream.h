// Tokens of one choice to what the client sees of them: text, reasoning, tool calls, log-probs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sampling/sampler.h"
#include "sampling/stop_strings.h"
#include "server/generation_request.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"

namespace lapidary {

// What tokens added to a choice. Deltas joined are the whole, however the tokens were split.
struct ChoiceDelta {
  struct ToolCall {
    int index = 0;
    std::string id;
    std::string name;
    std::string arguments;  // one JSON object
  };
  struct Logprob {
    SampledToken token;
    size_t text_offset = 0;  // code points before it
  };
  std::string content;
  std::string reasoning;
  std::vector<ToolCall> tool_calls;
  std::vector<Logprob> logprobs;  // if asked for

  bool has_text() const { return !content.empty() || !reasoning.empty() || !tool_calls.empty(); }
};

// Stop strings are looked for in the content alone: a model that thinks about a stop string has
// not come to its answer yet.
class ChoiceStream {
 public:
  // `parser_options` for chat; without them all text is content. `tokenizer` must outlive this.
  ChoiceStream(const Tokenizer& tokenizer, const GenerationRequest& request,
               const std::optional<OutputParserOptions>& parser_options, bool single_call);

  // After it returned true the choice is complete and must be pushed nothing more.
  bool Push(const SampledToken& token, ChoiceDelta* delta);
  // The last token was the one before; releases what was held back.
  void Finish(ChoiceDelta* delta);

  int num_tool_calls() const { return num_tool_calls_; }
  // The stop string that ended it.
  const std::string* matched_stop() const;

 private:
  void AddContent(std::string_view text, ChoiceDelta* delta);
  void Take(std::vector<OutputEvent> events, ChoiceDelta* delta);

  Detokenizer detokenizer_;
  StopStrings stop_strings_;
  std::optional<OutputParser> parser_;
  std::vector<std::string> stop_;
  bool wants_logprobs_;
  bool single_call_;
  size_t text_offset_ = 0;
  // A call is handed out when its arguments are known to parse; before, only its name is.
  std::string call_name_;
  int num_tool_calls_ = 0;
};

// "PREFIX" and 24 random hexadecimal digits.
std::string RandomId(std::string_view prefix);

}  // namespace lapidary
