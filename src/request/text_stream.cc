#include "request/text_stream.h"

namespace lapidary {

TextEvent TextStream::Next() {
  TextEvent event;
  event.request = stream_.Next();
  std::optional<FinishReason>& finish = event.request.finish;
  AnswerNews news = reader_.Read(event.request);
  event.output = std::move(news.output);
  event.request.tokens.resize(news.num_tokens);
  if (!reader_.is_complete()) return event;
  if (!finish) {
    if (news.end) stream_.Cancel();
  } else if (finish != FinishReason::kError) {
    finish = FinishReason::kStop;
  }
  return event;
}

}  // namespace lapidary
