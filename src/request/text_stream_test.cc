#include "request/text_stream.h"

#include <gtest/gtest.h>

#include "synth/byte_tokenizer.h"

namespace lapidary {
namespace {

class TextStreamTest : public testing::Test {
 protected:
  TextStreamTest()
      : tokenizer_(Tokenizer::FromJson(ByteTokenizer(512).value().dump(), "test").value()) {}

  // As the engine would send it, one token per event.
  void Send(std::string_view text, FinishReason finish) {
    std::vector<int32_t> ids = tokenizer_.Encode(text, SpecialTokens::kParse);
    for (size_t idx = 0; idx < ids.size(); ++idx) {
      RequestEvent event;
      event.tokens.push_back({.id = ids[idx]});
      if (idx + 1 == ids.size()) event.finish = finish;
      inbox_->Post(std::move(event));
    }
  }
  TextStream Open(AnswerReaderOptions options = {}) {
    return TextStream(RequestStream(RequestHandle(), inbox_), &tokenizer_, std::move(options));
  }
  struct Answer {
    std::string text;
    size_t num_tokens = 0;
    FinishReason finish = FinishReason::kError;
  };
  static Answer Read(TextStream& stream) {
    Answer answer;
    while (true) {
      const TextEvent event = stream.Next();
      for (const OutputEvent& output : event.output) answer.text += output.text;
      answer.num_tokens += event.request.tokens.size();
      if (!event.request.finish) continue;
      answer.finish = *event.request.finish;
      return answer;
    }
  }

  const Tokenizer tokenizer_;
  const std::shared_ptr<EventInbox> inbox_ = std::make_shared<EventInbox>();
};

TEST_F(TextStreamTest, TheTextIsThatOfTheTokens) {
  Send("Grüße", FinishReason::kLength);
  TextStream stream = Open();
  const Answer answer = Read(stream);
  EXPECT_EQ(answer.text, "Grüße");
  EXPECT_EQ(answer.finish, FinishReason::kLength);
}

TEST_F(TextStreamTest, TheTokenThatStoppedItHasNoText) {
  Send("yes!", FinishReason::kStop);
  TextStream stream = Open();
  const Answer answer = Read(stream);
  EXPECT_EQ(answer.text, "yes");
  EXPECT_EQ(answer.num_tokens, 4u);
  EXPECT_EQ(answer.finish, FinishReason::kStop);
}

TEST_F(TextStreamTest, NothingComesAfterAStopString) {
  Send("one STOP two", FinishReason::kCancelled);
  TextStream stream = Open({.stop = {"STOP"}});
  const Answer answer = Read(stream);
  EXPECT_EQ(answer.text, "one ");
  EXPECT_EQ(answer.num_tokens, 8u);
  EXPECT_EQ(answer.finish, FinishReason::kStop);
}

TEST_F(TextStreamTest, AnErrorStaysAnError) {
  Send("STOP", FinishReason::kError);
  TextStream stream = Open({.stop = {"STOP"}});
  EXPECT_EQ(Read(stream).finish, FinishReason::kError);
}

TEST_F(TextStreamTest, WithoutATokenizerThereAreTokensAlone) {
  Send("abc", FinishReason::kLength);
  TextStream stream(RequestStream(RequestHandle(), inbox_), nullptr, {});
  const Answer answer = Read(stream);
  EXPECT_EQ(answer.text, "");
  EXPECT_EQ(answer.num_tokens, 3u);
}

}  // namespace
}  // namespace lapidary
