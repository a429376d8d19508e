#include "library/answer_parts.h"

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

namespace {

Finish FinishOf(AnswerEnd::Reason reason) {
  switch (reason) {
    case AnswerEnd::Reason::kStop:
      return Finish::kStop;
    case AnswerEnd::Reason::kLength:
      return Finish::kLength;
    case AnswerEnd::Reason::kToolCalls:
      return Finish::kToolCalls;
    case AnswerEnd::Reason::kCancelled:
      return Finish::kAborted;
    case AnswerEnd::Reason::kError:
      return Finish::kError;
  }
  return Finish::kError;
}

}  // namespace

Answer AnswerParts::Take(const RequestEvent& event) {
  Answer answer;
  AnswerNews news = reader_.Read(event);
  for (size_t idx = 0; idx < news.num_tokens; ++idx) {
    answer.tokens.push_back(MakeToken(event.tokens[idx]));
  }
  using Kind = OutputEvent::Kind;
  for (OutputEvent& output : news.output) {
    if (output.kind == Kind::kReasoning) answer.reasoning += output.text;
    if (output.kind == Kind::kContent) answer.text += output.text;
    // A call is handed out when its arguments are known to parse, which then come whole.
    if (output.kind == Kind::kToolCallBegin) call_name_ = std::move(output.text);
    if (output.kind == Kind::kToolCallArguments) {
      answer.tool_calls.push_back({std::move(call_name_), std::move(output.text)});
    }
  }
  if (news.end) end_ = std::move(*news.end);
  if (!event.finish) return answer;
  answer.finish = event.finish == FinishReason::kError ? Finish::kError : FinishOf(end_.reason);
  answer.stop_string = end_.stop_string;
  answer.stop_token_id = end_.stop_token_id;
  answer.error = event.error;
  const DraftUsage& drafts = event.usage.drafts;
  answer.usage = {event.usage.cached_tokens, drafts.draft_tokens, drafts.accepted_tokens};
  return answer;
}

}  // namespace lapidary::v0
