#include "session/text_stream.h"

namespace lapidary {

TextStream::TextStream(RequestStream stream, const Tokenizer* tokenizer,
                       AnswerStreamOptions options)
    : stream_(std::move(stream)) {
  if (tokenizer != nullptr) answer_.emplace(*tokenizer, std::move(options));
}

TextEvent TextStream::Next() {
  TextEvent event;
  event.request = stream_.Next();
  if (!answer_) return event;
  std::vector<SampledToken>& tokens = event.request.tokens;
  std::optional<FinishReason>& finish = event.request.finish;
  size_t num_kept = 0;
  while (num_kept < tokens.size() && !answer_->matched()) {
    const int32_t id = tokens[num_kept++].id;
    const bool is_stop_token = finish == FinishReason::kStop && num_kept == tokens.size();
    if (!is_stop_token) answer_->Push(id, &event.output);
    if (answer_->matched() && !finish) stream_.Cancel();
  }
  tokens.resize(num_kept);
  if (!finish) return event;
  if (answer_->matched() && finish != FinishReason::kError) finish = FinishReason::kStop;
  answer_->Finish(&event.output);
  return event;
}

}  // namespace lapidary
