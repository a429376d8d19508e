// The text of one request as it is generated, on the caller's own thread: what a RequestStream
// brings, through an AnswerReader.
#pragma once

#include <vector>

#include "request/answer_reader.h"
#include "session/request_stream.h"

namespace lapidary {

struct TextEvent {
  std::vector<OutputEvent> output;  // text, thoughts and tool calls that are new; often none
  // What it came from. After a stop string there are no tokens, and the end is kStop.
  RequestEvent request;
};

class TextStream {
 public:
  // Without a tokenizer, which must outlive this, there is no output.
  TextStream(RequestStream stream, const Tokenizer* tokenizer, AnswerReaderOptions options)
      : stream_(std::move(stream)), reader_(tokenizer, std::move(options)) {}

  // As RequestStream::Next. The token that stopped the answer has no text.
  TextEvent Next();

  void Cancel() const { stream_.Cancel(); }

 private:
  RequestStream stream_;
  AnswerReader reader_;
};

}  // namespace lapidary
