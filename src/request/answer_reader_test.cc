#include "request/answer_reader.h"

#include <gtest/gtest.h>

#include "synth/byte_tokenizer.h"

namespace lapidary {
namespace {

using Reason = AnswerEnd::Reason;

class AnswerReaderTest : public testing::Test {
 protected:
  AnswerReaderTest()
      : tokenizer_(Tokenizer::FromJson(ByteTokenizer(512).value().dump(), "test").value()) {}

  // The tokens of `text` in one event.
  RequestEvent EventOf(std::string_view text, std::optional<FinishReason> finish) const {
    RequestEvent event;
    for (const int32_t id : tokenizer_.Encode(text, SpecialTokens::kParse)) {
      event.tokens.push_back({.id = id});
    }
    event.finish = finish;
    return event;
  }
  static std::string TextOf(const AnswerNews& news) {
    std::string text;
    for (const OutputEvent& output : news.output) text += output.text;
    return text;
  }

  const Tokenizer tokenizer_;
};

TEST_F(AnswerReaderTest, AStopStringEndsTheAnswerBeforeTheEngineDoes) {
  AnswerReader reader(&tokenizer_, {.stop = {"never", "STOP"}});
  const AnswerNews news = reader.Read(EventOf("one STOP two", std::nullopt));
  EXPECT_EQ(TextOf(news), "one ");
  EXPECT_EQ(news.num_tokens, 8u);
  ASSERT_TRUE(news.end.has_value());
  EXPECT_EQ(news.end->reason, Reason::kStop);
  EXPECT_EQ(news.end->stop_string, "STOP");
  EXPECT_TRUE(reader.is_complete());
  const AnswerNews last = reader.Read(EventOf("three", FinishReason::kCancelled));
  EXPECT_EQ(last.num_tokens, 0u);
  EXPECT_FALSE(last.end.has_value());
}

TEST_F(AnswerReaderTest, AStopTokenHasNoTextAndIsNamedIfTheRequestNamedIt) {
  const int32_t exclamation = tokenizer_.Encode("!", SpecialTokens::kParse).at(0);
  for (const bool is_named : {false, true}) {
    AnswerReaderOptions options;
    if (is_named) options.stop_token_ids = {exclamation};
    AnswerReader reader(&tokenizer_, options);
    const AnswerNews news = reader.Read(EventOf("yes!", FinishReason::kStop));
    EXPECT_EQ(TextOf(news), "yes");
    EXPECT_EQ(news.num_tokens, 4u);
    EXPECT_TRUE(news.has_stop_token);
    EXPECT_EQ(news.end->stop_token_id, is_named ? exclamation : -1);
  }
}

TEST_F(AnswerReaderTest, OffsetsCountTheCharactersBeforeEachToken) {
  AnswerReader reader(&tokenizer_, {});
  EXPECT_EQ(reader.Read(EventOf("ab", std::nullopt)).text_offsets, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(reader.Read(EventOf("c", FinishReason::kLength)).text_offsets,
            (std::vector<size_t>{2}));
}

TEST_F(AnswerReaderTest, EveryEndHasItsReason) {
  for (const auto& [finish, reason] : {std::pair{FinishReason::kStop, Reason::kStop},
                                       {FinishReason::kLength, Reason::kLength},
                                       {FinishReason::kCancelled, Reason::kCancelled},
                                       {FinishReason::kError, Reason::kError}}) {
    AnswerReader reader(&tokenizer_, {});
    EXPECT_EQ(reader.Read(EventOf("a", finish)).end->reason, reason);
  }
}

TEST_F(AnswerReaderTest, WithoutATokenizerThereAreTokensAlone) {
  AnswerReader reader(nullptr, {});
  const AnswerNews news = reader.Read(EventOf("abc", FinishReason::kLength));
  EXPECT_TRUE(news.output.empty());
  EXPECT_EQ(news.num_tokens, 3u);
  EXPECT_EQ(news.end->reason, Reason::kLength);
}

}  // namespace
}  // namespace lapidary
