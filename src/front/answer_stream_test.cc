#include "front/answer_stream.h"

#include <gtest/gtest.h>

#include "synth/byte_tokenizer.h"

namespace lapidary {
namespace {

class AnswerStreamTest : public testing::Test {
 protected:
  AnswerStreamTest()
      : tokenizer_(Tokenizer::FromJson(ByteTokenizer(512).value().dump(), "test").value()) {}

  std::vector<int32_t> Ids(std::string_view text) const {
    return tokenizer_.Encode(text, SpecialTokens::kParse);
  }
  StopStrings Stops(const std::vector<std::string>& strings) const {
    return StopStrings::Create(strings).value();
  }
  static std::string Join(const std::vector<OutputEvent>& events) {
    std::string text;
    for (const OutputEvent& event : events) {
      EXPECT_EQ(event.kind, OutputEvent::Kind::kContent);
      text += event.text;
    }
    return text;
  }
  static std::string Push(AnswerStream& stream, int32_t id) {
    std::vector<OutputEvent> events;
    stream.Push(id, &events);
    return Join(events);
  }
  static std::string Finish(AnswerStream& stream) {
    std::vector<OutputEvent> events;
    stream.Finish(&events);
    return Join(events);
  }
  static std::string Run(AnswerStream& stream, const std::vector<int32_t>& ids) {
    std::string text;
    for (const int32_t id : ids) text += Push(stream, id);
    return text + Finish(stream);
  }

  const Tokenizer tokenizer_;
};

TEST_F(AnswerStreamTest, PiecesJoinedAreTheDecodedText) {
  const std::vector<int32_t> ids = Ids("Grüße, 世界 \U0001F48E\n done");
  AnswerStream stream(tokenizer_, {});
  EXPECT_EQ(Run(stream, ids), tokenizer_.Decode(ids, true).value());
  EXPECT_FALSE(stream.matched());
  EXPECT_EQ(stream.num_characters(), 17u);
}

TEST_F(AnswerStreamTest, PiecesEndAtCharacters) {
  const std::vector<int32_t> ids = Ids("é");
  ASSERT_EQ(ids.size(), 2);
  AnswerStream stream(tokenizer_, {});
  EXPECT_EQ(Push(stream, ids[0]), "");
  EXPECT_EQ(Push(stream, ids[1]), "é");
  EXPECT_EQ(Finish(stream), "");
}

TEST_F(AnswerStreamTest, UnfinishedCharactersBecomeReplacementsAtTheEnd) {
  AnswerStream stream(tokenizer_, {});
  EXPECT_EQ(Run(stream, {Ids("é")[0]}), "\uFFFD");
}

TEST_F(AnswerStreamTest, SpecialTokensAreLeftOutOnRequest) {
  const std::vector<int32_t> ids = Ids("a<turn|>b");
  AnswerStream skipping(tokenizer_, {.skip_special = true});
  EXPECT_EQ(Run(skipping, ids), "ab");
  AnswerStream spelling(tokenizer_, {.skip_special = false});
  EXPECT_EQ(Run(spelling, ids), "a<turn|>b");
}

TEST_F(AnswerStreamTest, TextIsCutBeforeAStopStringThatSpansTokens) {
  AnswerStream stream(tokenizer_, {.stop_strings = Stops({"never", "STOP"})});
  std::string text;
  for (const int32_t id : Ids("one STOP two")) {
    text += Push(stream, id);
    if (stream.matched()) break;
  }
  EXPECT_TRUE(stream.matched());
  EXPECT_EQ(stream.match_index(), 1);
  EXPECT_EQ(text + Finish(stream), "one ");
}

TEST_F(AnswerStreamTest, AStopStringThatIsCompleteTooEarlyIsText) {
  const std::vector<int32_t> ids = Ids("STOP and STOP");
  const auto num_early = static_cast<int32_t>(Ids("STOP").size());
  const auto run = [&](int32_t min_tokens) {
    AnswerStream stream(tokenizer_, {.stop_strings = Stops({"STOP"}), .min_tokens = min_tokens});
    std::string text;
    for (const int32_t id : ids) {
      if (stream.matched()) break;
      text += Push(stream, id);
    }
    return text + Finish(stream);
  };
  EXPECT_EQ(run(num_early - 1), "");
  EXPECT_EQ(run(num_early), "STOP and ");
  EXPECT_EQ(run(100), "STOP and STOP");
}

TEST_F(AnswerStreamTest, ThePartOfAStopStringIsReleasedWhenTheTextEnds) {
  AnswerStream stream(tokenizer_, {.stop_strings = Stops({"STOP"})});
  std::string text;
  for (const int32_t id : Ids("one STO")) text += Push(stream, id);
  EXPECT_EQ(text, "one ");
  EXPECT_EQ(Finish(stream), "STO");
  EXPECT_FALSE(stream.matched());
}

TEST_F(AnswerStreamTest, AStopStringMayBeTheReplacementOfALostByte) {
  AnswerStream stream(tokenizer_, {.stop_strings = Stops({"\uFFFD"})});
  EXPECT_EQ(Run(stream, {Ids("a")[0], Ids("é")[0]}), "a");
  EXPECT_TRUE(stream.matched());
}

TEST_F(AnswerStreamTest, UnfinishedCharactersStayInTheirThought) {
  std::vector<int32_t> ids = Ids("<|channel>thought\nHm\u00e9");
  ids.pop_back();  // half of a character
  for (const int32_t id : Ids("<channel|>no")) ids.push_back(id);
  AnswerStream stream(tokenizer_, {.parser = OutputParserOptions()});
  std::vector<OutputEvent> events;
  for (const int32_t id : ids) stream.Push(id, &events);
  stream.Finish(&events);
  std::string reasoning;
  std::string content;
  for (const OutputEvent& event : events) {
    (event.kind == OutputEvent::Kind::kReasoning ? reasoning : content) += event.text;
  }
  EXPECT_EQ(reasoning, "Hm\uFFFD");
  EXPECT_EQ(content, "no");
}

TEST_F(AnswerStreamTest, UnknownIdsHaveNoText) {
  AnswerStream stream(tokenizer_, {});
  EXPECT_EQ(Run(stream, {Ids("a")[0], 100000, -1, Ids("b")[0]}), "ab");
}

TEST_F(AnswerStreamTest, WithAParserStopStringsCutTheContentAndNotTheThoughts) {
  AnswerStream stream(tokenizer_,
                      {.stop_strings = Stops({"STOP"}), .parser = OutputParserOptions{}});
  std::vector<OutputEvent> events;
  for (const int32_t id : Ids("<|channel>thought\nSTOP\n<channel|>one STOP two")) {
    stream.Push(id, &events);
    if (stream.matched()) break;
  }
  stream.Finish(&events);
  std::string reasoning;
  std::string content;
  for (const OutputEvent& event : events) {
    (event.kind == OutputEvent::Kind::kReasoning ? reasoning : content) += event.text;
  }
  EXPECT_EQ(reasoning, "STOP");
  EXPECT_EQ(content, "one ");
  EXPECT_TRUE(stream.matched());
}

}  // namespace
}  // namespace lapidary
