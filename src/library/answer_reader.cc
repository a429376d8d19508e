#include "library/answer_reader.h"

#include <algorithm>

namespace lapidary::v0 {

const char* FinishName(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kToolCalls:
      return "tool_calls";
    case Finish::kAborted:
      return "abort";
    case Finish::kError:
      return "error";
  }
  return "";
}

Token MakeToken(const SampledToken& sampled) {
  Token token{.id = sampled.id, .logprob = sampled.logprob};
  for (const TokenLogprob& top : sampled.top_logprobs()) token.top.push_back({top.id, top.logprob});
  return token;
}

AnswerReader::AnswerReader(const Tokenizer* tokenizer, const Request& request)
    : stop_(request.stop), stop_token_ids_(request.stop_token_ids) {
  if (tokenizer == nullptr) {
    if (!stop_.empty())
      throw InvalidInput("stop strings need text, and the model has no tokenizer");
    return;
  }
  AnswerStreamOptions options;
  options.skip_special = request.skip_special_tokens;
  options.stop_strings = ValueOrThrow(StopStrings::Create(request.stop, request.include_stop));
  options.min_tokens = request.min_tokens;
  if (const ChatDetails* chat = request.prompt.chat.get()) {
    options.parser = chat->parser;
    single_call_ = chat->single_call;
  }
  text_.emplace(*tokenizer, std::move(options));
}

Answer AnswerReader::Take(const RequestEvent& event) {
  Answer answer;
  const bool has_stop_token = event.finish == FinishReason::kStop && !event.tokens.empty();
  for (size_t token_idx = 0; token_idx < event.tokens.size() && !is_cut_; ++token_idx) {
    const SampledToken& token = event.tokens[token_idx];
    answer.tokens.push_back(MakeToken(token));
    const bool is_stop_token = has_stop_token && token_idx + 1 == event.tokens.size();
    if (!is_stop_token) Push(token.id, answer);
  }
  if (!event.finish) return answer;
  if (text_) {
    text_->Finish(&events_);
    AddText(answer);
  }
  answer.finish = FinishOf(event);
  answer.error = event.error;
  const DraftUsage& drafts = event.usage.drafts;
  answer.usage = {event.usage.cached_tokens, drafts.draft_tokens, drafts.accepted_tokens};
  if (text_ && text_->matched()) {
    answer.stop_string = stop_[static_cast<size_t>(text_->match_index())];
  } else if (has_stop_token && !is_cut_) {
    const int32_t id = event.tokens.back().id;
    const bool was_asked_for =
        std::find(stop_token_ids_.begin(), stop_token_ids_.end(), id) != stop_token_ids_.end();
    if (was_asked_for) answer.stop_token_id = id;
  }
  return answer;
}

Finish AnswerReader::FinishOf(const RequestEvent& event) const {
  if (event.finish == FinishReason::kError) return Finish::kError;
  if (is_cut_ || event.finish == FinishReason::kStop) {
    return num_calls_ > 0 ? Finish::kToolCalls : Finish::kStop;
  }
  return event.finish == FinishReason::kLength ? Finish::kLength : Finish::kAborted;
}

void AnswerReader::Push(int32_t id, Answer& answer) {
  if (!text_) return;
  text_->Push(id, &events_);
  AddText(answer);
  is_cut_ = text_->matched() || (single_call_ && num_calls_ > 0);
}

void AnswerReader::AddText(Answer& answer) {
  using Kind = OutputEvent::Kind;
  for (OutputEvent& event : events_) {
    if (event.kind == Kind::kReasoning) answer.reasoning += event.text;
    if (event.kind == Kind::kContent) answer.text += event.text;
    if (event.kind == Kind::kToolCallBegin) call_name_ = std::move(event.text);
    if (event.kind == Kind::kToolCallArguments && !(single_call_ && num_calls_ > 0)) {
      answer.tool_calls.push_back({std::move(call_name_), std::move(event.text)});
      ++num_calls_;
    }
  }
  events_.clear();
}

}  // namespace lapidary::v0
