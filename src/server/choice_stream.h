// Tokens of one choice to what the client sees of them: text, reasoning, tool calls, log-probs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "front/answer_stream.h"
#include "sampling/sampler.h"
#include "server/generation_request.h"

namespace lapidary {

// What tokens added to a choice. Deltas joined are the whole, however the tokens were split.
struct ChoiceDelta {
  // A call, or more of one whose beginning an earlier delta had: that has neither id nor name.
  struct ToolCall {
    int index = 0;
    std::string id;
    std::string name;
    std::string arguments;  // of all of a call's deltas together: one JSON object

    bool is_begin() const { return !id.empty(); }
  };
  struct Logprob {
    SampledToken token;
    size_t text_offset = 0;   // characters before it
    bool is_unknown = false;  // a prompt's first token, which nothing comes before
  };
  std::string content;
  std::string reasoning;
  std::vector<ToolCall> tool_calls;
  std::vector<Logprob> logprobs;   // if asked for
  std::vector<int32_t> token_ids;  // if asked for

  bool has_text() const { return !content.empty() || !reasoning.empty() || !tool_calls.empty(); }
  // Of memory that it holds.
  size_t NumBytes() const;
};

// An AnswerStream in OpenAI's terms: calls have ids, tokens have logprobs.
class ChoiceStream {
 public:
  // `parser_options` for chat; without them all text is content. `first_offset`: characters that
  // come before, of an echoed prompt. `tokenizer` must outlive this.
  ChoiceStream(const Tokenizer& tokenizer, const GenerationRequest& request,
               const std::optional<OutputParserOptions>& parser_options, bool single_call,
               size_t first_offset = 0);

  // After it returned true the choice is complete and must be pushed nothing more.
  bool Push(const SampledToken& token, ChoiceDelta* delta);
  // The token that ended the choice: it has no text, but in a text completion a logprob.
  // (Evaluation harnesses ask for one token and drop the last logprob: it must be that token's.)
  void PushStopToken(const SampledToken& token, ChoiceDelta* delta) const;
  // Reads tokens that the client has: what they show is not shown again. A call that they leave
  // open is *open_call. Of those that end the answer, so that nothing comes behind it, the first
  // one's index is returned.
  std::optional<size_t> Replay(std::span<const int32_t> ids,
                               std::optional<ChoiceDelta::ToolCall>* open_call);
  // The last token was the one before; releases what was held back.
  void Finish(ChoiceDelta* delta);

  int num_tool_calls() const { return num_tool_calls_; }
  // Tokens of thoughts so far, with those that open and close them.
  int num_reasoning_tokens() const { return num_reasoning_tokens_; }
  // The stop string that ended it.
  const std::string* matched_stop() const;

 private:
  void Take(std::vector<OutputEvent> events, ChoiceDelta* delta);
  void TakeCall(OutputEvent& event, ChoiceDelta* delta);

  AnswerStream answer_;
  std::vector<std::string> stop_;
  bool wants_logprobs_;
  bool wants_token_ids_;
  bool single_call_;
  bool is_text_;  // no chat: all of it is content
  size_t first_offset_;
  bool is_call_wanted_ = false;  // the one being read
  int num_tool_calls_ = 0;       // that came to their end
  int num_reasoning_tokens_ = 0;
};

}  // namespace lapidary
