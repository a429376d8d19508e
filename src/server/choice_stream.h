// Tokens of one choice to what the client sees of them: text, reasoning, tool calls, log-probs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "request/answer_reader.h"
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

// An AnswerReader in OpenAI's terms: calls have ids, tokens have logprobs.
class ChoiceStream {
 public:
  // `reader` as of AnswerReader. `first_offset`: characters that come before, of an echoed prompt.
  // `tokenizer` must outlive this.
  ChoiceStream(const Tokenizer& tokenizer, AnswerReaderOptions reader,
               const GenerationRequest& request, size_t first_offset = 0);

  struct News {
    size_t num_tokens = 0;         // of the event that belong to the choice
    std::optional<AnswerEnd> end;  // the choice is complete and is read nothing more
  };
  // The token that ended the choice has no text, but in a text completion a logprob. (Evaluation
  // harnesses ask for one token and drop the last logprob: it must be that token's.)
  News Read(const RequestEvent& event, ChoiceDelta* delta);
  // Reads tokens that the client has: what they show is not shown again. A call that they leave
  // open is *open_call. Of those that end the answer, so that nothing comes behind it, the first
  // one's index is returned.
  std::optional<size_t> Replay(std::span<const int32_t> ids,
                               std::optional<ChoiceDelta::ToolCall>* open_call);

  int num_tool_calls() const { return reader_.num_tool_calls(); }
  int num_reasoning_tokens() const { return reader_.num_reasoning_tokens(); }
  const std::string* matched_stop() const { return reader_.matched_stop(); }

 private:
  void TakeCall(OutputEvent& event, ChoiceDelta* delta);

  AnswerReader reader_;
  bool wants_logprobs_;
  bool wants_token_ids_;
  bool is_text_;  // no chat: all of it is content
  size_t first_offset_;
  int num_ended_calls_ = 0;
};

}  // namespace lapidary
