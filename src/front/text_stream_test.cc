#include "front/text_stream.h"

#include <gtest/gtest.h>

#include "synth/byte_tokenizer.h"

namespace lapidary {
namespace {

class TextStreamTest : public testing::Test {
 protected:
  TextStreamTest()
      : tokenizer_(Tokenizer::FromJson(ByteTokenizer(512).value().dump(), "test").value()) {}

  std::vector<int32_t> Ids(std::string_view text) const {
    return tokenizer_.Encode(text, SpecialTokens::kParse);
  }
  StopStrings Stops(const std::vector<std::string>& strings) const {
    return StopStrings::Create(strings).value();
  }
  static std::string Run(TextStream& stream, const std::vector<int32_t>& ids) {
    std::string text;
    for (const int32_t id : ids) text += stream.Push(id);
    return text + stream.Finish();
  }

  const Tokenizer tokenizer_;
};

TEST_F(TextStreamTest, PiecesJoinedAreTheDecodedText) {
  const std::vector<int32_t> ids = Ids("Grüße, 世界 \U0001F48E\n done");
  TextStream stream(tokenizer_, /*skip_special=*/true);
  EXPECT_EQ(Run(stream, ids), tokenizer_.Decode(ids, true).value());
  EXPECT_FALSE(stream.matched());
}

TEST_F(TextStreamTest, PiecesEndAtCharacters) {
  const std::vector<int32_t> ids = Ids("é");
  ASSERT_EQ(ids.size(), 2);
  TextStream stream(tokenizer_, /*skip_special=*/true);
  EXPECT_EQ(stream.Push(ids[0]), "");
  EXPECT_EQ(stream.Push(ids[1]), "é");
  EXPECT_EQ(stream.Finish(), "");
}

TEST_F(TextStreamTest, UnfinishedCharactersBecomeReplacementsAtTheEnd) {
  TextStream stream(tokenizer_, /*skip_special=*/true);
  EXPECT_EQ(Run(stream, {Ids("é")[0]}), "\uFFFD");
}

TEST_F(TextStreamTest, SpecialTokensAreLeftOutOnRequest) {
  const std::vector<int32_t> ids = Ids("a<turn|>b");
  TextStream skipping(tokenizer_, /*skip_special=*/true);
  EXPECT_EQ(Run(skipping, ids), "ab");
  TextStream spelling(tokenizer_, /*skip_special=*/false);
  EXPECT_EQ(Run(spelling, ids), "a<turn|>b");
}

TEST_F(TextStreamTest, TextIsCutBeforeAStopStringThatSpansTokens) {
  TextStream stream(tokenizer_, /*skip_special=*/true, Stops({"never", "STOP"}));
  std::string text;
  for (const int32_t id : Ids("one STOP two")) {
    text += stream.Push(id);
    if (stream.matched()) break;
  }
  EXPECT_TRUE(stream.matched());
  EXPECT_EQ(stream.match_index(), 1);
  EXPECT_EQ(text + stream.Finish(), "one ");
}

TEST_F(TextStreamTest, ThePartOfAStopStringIsReleasedWhenTheTextEnds) {
  TextStream stream(tokenizer_, /*skip_special=*/true, Stops({"STOP"}));
  std::string text;
  for (const int32_t id : Ids("one STO")) text += stream.Push(id);
  EXPECT_EQ(text, "one ");
  EXPECT_EQ(stream.Finish(), "STO");
  EXPECT_FALSE(stream.matched());
}

TEST_F(TextStreamTest, AStopStringMayBeTheReplacementOfALostByte) {
  TextStream stream(tokenizer_, /*skip_special=*/true, Stops({"\uFFFD"}));
  EXPECT_EQ(Run(stream, {Ids("a")[0], Ids("é")[0]}), "a");
  EXPECT_TRUE(stream.matched());
}

TEST_F(TextStreamTest, UnknownIdsHaveNoText) {
  TextStream stream(tokenizer_, /*skip_special=*/true);
  EXPECT_EQ(Run(stream, {Ids("a")[0], 100000, -1, Ids("b")[0]}), "ab");
}

}  // namespace
}  // namespace lapidary
