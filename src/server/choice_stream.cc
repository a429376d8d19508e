#include "server/choice_stream.h"

#include "server/random_id.h"

namespace lapidary {
namespace {

std::optional<OutputParserOptions> ParserFor(std::optional<OutputParserOptions> options,
                                             bool is_streamed) {
  if (options) options->stream_arguments = is_streamed;
  return options;
}

}  // namespace

size_t ChoiceDelta::NumBytes() const {
  size_t num_bytes = content.capacity() + reasoning.capacity() +
                     logprobs.capacity() * sizeof(Logprob) + token_ids.capacity() * sizeof(int32_t);
  for (const ToolCall& call : tool_calls) num_bytes += sizeof(call) + call.arguments.capacity();
  return num_bytes;
}

ChoiceStream::ChoiceStream(const Tokenizer& tokenizer, const GenerationRequest& request,
                           const std::optional<OutputParserOptions>& parser_options,
                           bool single_call, size_t first_offset)
    : answer_(tokenizer,
              {.skip_special = request.skip_special,
               .stop_strings = StopStrings::Create(request.stop, request.include_stop_text).value(),
               .min_tokens = request.min_tokens,
               .parser = ParserFor(parser_options, request.stream)}),
      stop_(request.stop),
      wants_logprobs_(request.sampling.num_logprobs >= 0),
      wants_token_ids_(request.return_token_ids),
      single_call_(single_call),
      is_text_(!parser_options.has_value()),
      first_offset_(first_offset) {}

bool ChoiceStream::Push(const SampledToken& token, ChoiceDelta* delta) {
  if (wants_logprobs_) delta->logprobs.push_back({token, first_offset_ + answer_.num_characters()});
  if (wants_token_ids_) delta->token_ids.push_back(token.id);
  std::vector<OutputEvent> events;
  const bool was_in_thought = answer_.in_thought();
  answer_.Push(token.id, &events);
  num_reasoning_tokens_ += was_in_thought || answer_.in_thought();
  Take(std::move(events), delta);
  return answer_.matched() || (single_call_ && num_tool_calls_ > 0);
}

void ChoiceStream::PushStopToken(const SampledToken& token, ChoiceDelta* delta) const {
  if (wants_token_ids_) delta->token_ids.push_back(token.id);
  if (!is_text_) return;
  if (wants_logprobs_) delta->logprobs.push_back({token, first_offset_ + answer_.num_characters()});
}

std::optional<size_t> ChoiceStream::Replay(std::span<const int32_t> ids,
                                           std::optional<ChoiceDelta::ToolCall>* open_call) {
  ChoiceDelta shown;
  for (size_t idx = 0; idx < ids.size(); ++idx) {
    SampledToken token;
    token.id = ids[idx];
    if (Push(token, &shown)) return idx;
    // An open call stays: it may turn out to be none.
    std::vector<ChoiceDelta::ToolCall> calls = std::move(shown.tool_calls);
    std::erase_if(calls, [&](const auto& call) { return call.index < num_tool_calls_; });
    shown = {};
    shown.tool_calls = std::move(calls);
  }
  if (!shown.tool_calls.empty()) *open_call = std::move(shown.tool_calls[0]);
  return std::nullopt;
}

void ChoiceStream::Finish(ChoiceDelta* delta) {
  std::vector<OutputEvent> events;
  answer_.Finish(&events);
  Take(std::move(events), delta);
}

void ChoiceStream::Take(std::vector<OutputEvent> events, ChoiceDelta* delta) {
  using Kind = OutputEvent::Kind;
  for (OutputEvent& event : events) {
    if (event.kind == Kind::kReasoning) delta->reasoning += event.text;
    if (event.kind == Kind::kContent) delta->content += event.text;
    TakeCall(event, delta);
  }
}

void ChoiceStream::TakeCall(OutputEvent& event, ChoiceDelta* delta) {
  using Kind = OutputEvent::Kind;
  std::vector<ChoiceDelta::ToolCall>& calls = delta->tool_calls;
  if (event.kind == Kind::kToolCallBegin) {
    is_call_wanted_ = !(single_call_ && num_tool_calls_ > 0);
    if (!is_call_wanted_) return;
    calls.push_back({num_tool_calls_, RandomId("call_"), std::move(event.text), ""});
  }
  if (!is_call_wanted_) return;
  if (event.kind == Kind::kToolCallArguments) {
    if (calls.empty() || calls.back().index != num_tool_calls_) {
      calls.push_back({num_tool_calls_, "", "", ""});
    }
    calls.back().arguments += event.text;
  }
  if (event.kind == Kind::kToolCallCancel) calls.pop_back();  // Nothing of it was streamed.
  if (event.kind == Kind::kToolCallEnd) ++num_tool_calls_;
}

const std::string* ChoiceStream::matched_stop() const {
  return answer_.matched() ? &stop_[static_cast<size_t>(answer_.match_index())] : nullptr;
}

}  // namespace lapidary
