#include "server/choice_stream.h"

#include "server/random_id.h"

namespace lapidary {

size_t ChoiceDelta::NumBytes() const {
  size_t num_bytes = content.capacity() + reasoning.capacity() +
                     logprobs.capacity() * sizeof(Logprob) + token_ids.capacity() * sizeof(int32_t);
  for (const ToolCall& call : tool_calls) num_bytes += sizeof(call) + call.arguments.capacity();
  return num_bytes;
}

ChoiceStream::ChoiceStream(const Tokenizer& tokenizer, AnswerReaderOptions reader,
                           const GenerationRequest& request, size_t first_offset)
    : reader_(&tokenizer, reader),
      wants_logprobs_(request.sampling.num_logprobs >= 0),
      wants_token_ids_(request.return_token_ids),
      is_text_(!reader.parser.has_value()),
      first_offset_(first_offset) {}

ChoiceStream::News ChoiceStream::Read(const RequestEvent& event, ChoiceDelta* delta) {
  AnswerNews news = reader_.Read(event);
  for (size_t idx = 0; idx < news.num_tokens; ++idx) {
    const SampledToken& token = event.tokens[idx];
    const bool is_stop_token = news.has_stop_token && idx + 1 == news.num_tokens;
    if (wants_logprobs_ && (is_text_ || !is_stop_token)) {
      delta->logprobs.push_back({token, first_offset_ + news.text_offsets[idx]});
    }
    if (wants_token_ids_) delta->token_ids.push_back(token.id);
  }
  using Kind = OutputEvent::Kind;
  for (OutputEvent& output : news.output) {
    if (output.kind == Kind::kReasoning) delta->reasoning += output.text;
    if (output.kind == Kind::kContent) delta->content += output.text;
    TakeCall(output, delta);
  }
  return {news.num_tokens, std::move(news.end)};
}

std::optional<size_t> ChoiceStream::Replay(std::span<const int32_t> ids,
                                           std::optional<ChoiceDelta::ToolCall>* open_call) {
  ChoiceDelta shown;
  RequestEvent event;
  event.tokens.resize(1);
  for (size_t idx = 0; idx < ids.size(); ++idx) {
    event.tokens[0].id = ids[idx];
    if (Read(event, &shown).end) return idx;
    // An open call stays: it may turn out to be none.
    std::vector<ChoiceDelta::ToolCall> calls = std::move(shown.tool_calls);
    std::erase_if(calls, [&](const auto& call) { return call.index < num_ended_calls_; });
    shown = {};
    shown.tool_calls = std::move(calls);
  }
  if (!shown.tool_calls.empty()) *open_call = std::move(shown.tool_calls[0]);
  return std::nullopt;
}

void ChoiceStream::TakeCall(OutputEvent& event, ChoiceDelta* delta) {
  using Kind = OutputEvent::Kind;
  std::vector<ChoiceDelta::ToolCall>& calls = delta->tool_calls;
  if (event.kind == Kind::kToolCallBegin) {
    calls.push_back({num_ended_calls_, RandomId("call_"), std::move(event.text), ""});
  }
  if (event.kind == Kind::kToolCallArguments) {
    if (calls.empty() || calls.back().index != num_ended_calls_) {
      calls.push_back({num_ended_calls_, "", "", ""});
    }
    calls.back().arguments += event.text;
  }
  if (event.kind == Kind::kToolCallCancel) calls.pop_back();  // Nothing of it was streamed.
  if (event.kind == Kind::kToolCallEnd) ++num_ended_calls_;
}

}  // namespace lapidary
