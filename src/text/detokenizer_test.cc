#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/utf8.h"

namespace lapidary {
namespace {

const Tokenizer& Mini() {
  static const Tokenizer tokenizer = [] {
    auto loaded = Tokenizer::Load(std::string(LAPIDARY_SOURCE_DIR) +
                                  "/tests/data/tokenizer/tokenizer-mini.json");
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    return *std::move(loaded);
  }();
  return tokenizer;
}

int32_t ByteId(int byte) { return 238 + byte; }

bool IsWellFormed(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char front = ReadUtf8(text);
    if (front.status != Utf8Status::kComplete) return false;
    text.remove_prefix(front.num_bytes);
  }
  return true;
}

std::vector<std::string> Stream(const std::vector<int32_t>& ids, bool skip_special) {
  Detokenizer detokenizer(Mini(), skip_special);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) {
    EXPECT_TRUE(detokenizer.Push(id, &pieces.emplace_back()).ok());
  }
  detokenizer.Finish(&pieces.emplace_back());
  return pieces;
}

std::string Decode(const std::vector<int32_t>& ids, bool skip_special = false) {
  return Mini().Decode(ids, skip_special).value();
}

TEST(DetokenizerTest, PiecesAreWellFormedAndJoinToTheWholeDecode) {
  std::mt19937 random(42);
  for (int round = 0; round < 3000; ++round) {
    std::vector<int32_t> ids(random() % 24);
    for (int32_t& id : ids) {
      switch (random() % 4) {
        case 0:
          id = static_cast<int32_t>(random() % Mini().vocab_size());  // mostly holes
          break;
        case 1:
          id = static_cast<int32_t>(random() % 110);  // specials among holes
          break;
        case 2:
          id = ByteId(static_cast<int>(random() % 256));
          break;
        default:
          // Bytes that often do form characters.
          id = ByteId("\xE2\x96\x81\xF0\x9F\x98\x80\xC3\xA9"[random() % 9] & 0xFF);
      }
    }
    for (const bool skip_special : {false, true}) {
      std::string joined;
      for (const std::string& piece : Stream(ids, skip_special)) {
        EXPECT_TRUE(IsWellFormed(piece));
        joined += piece;
      }
      EXPECT_EQ(joined, Decode(ids, skip_special));
    }
  }
}

TEST(DetokenizerTest, ACharacterComesOutWithItsLastByte) {
  const std::vector<std::string> expected = {"", "", "", "\U0001F600", "A", ""};
  EXPECT_EQ(Stream({ByteId(0xF0), ByteId(0x9F), ByteId(0x98), ByteId(0x80), ByteId('A')}, false),
            expected);
}

TEST(DetokenizerTest, AMalformedByteIsReplacedAsSoonAsThatIsCertain) {
  // 0xC3 waits for a continuation; 'A' is none, and is itself a character.
  const std::vector<std::string> expected = {"", "\uFFFDA", ""};
  EXPECT_EQ(Stream({ByteId(0xC3), ByteId('A')}, false), expected);
  // Each byte of an unfinished character counts, and so does each of a surrogate.
  EXPECT_EQ(Decode({ByteId(0xE2), ByteId(0x96)}), "\uFFFD\uFFFD");
  EXPECT_EQ(Decode({ByteId(0xED), ByteId(0xA0), ByteId(0x80)}), "\uFFFD\uFFFD\uFFFD");
}

TEST(DetokenizerTest, AnOrdinaryTokenEndsARunOfBytes) {
  const int32_t two_spaces = 138;
  EXPECT_EQ(Decode({ByteId(0xE2), two_spaces, ByteId(0x96)}), "\uFFFD  \uFFFD");
}

TEST(DetokenizerTest, ASkippedSpecialTokenDoesNotEndARunOfBytes) {
  const std::vector<int32_t> ids = {ByteId(0xC3), Mini().bos_id(), ByteId(0xA9)};
  EXPECT_EQ(Decode(ids, /*skip_special=*/true), "\u00E9");
  EXPECT_EQ(Decode(ids, /*skip_special=*/false), "\uFFFD<bos>\uFFFD");
}

TEST(DetokenizerTest, ASpaceMarkSpelledInBytesIsNotASpace) {
  EXPECT_EQ(Decode({ByteId(0xE2), ByteId(0x96), ByteId(0x81)}), "\u2581");
}

TEST(DetokenizerTest, ALeadingSpaceIsKept) { EXPECT_EQ(Decode({140}), "    "); }

TEST(DetokenizerTest, IdsOutsideTheVocabularyAreErrors) {
  for (const int32_t id : {-1, INT32_MIN, Mini().vocab_size(), INT32_MAX}) {
    EXPECT_FALSE(Mini().Decode({{id}}, false).ok()) << id;
    std::string text;
    EXPECT_FALSE(Detokenizer(Mini(), true).Push(id, &text).ok()) << id;
    EXPECT_EQ(text, "");
  }
}

TEST(DetokenizerTest, FinishBeginsANewText) {
  Detokenizer detokenizer(Mini(), false);
  std::string text;
  EXPECT_TRUE(detokenizer.Push(ByteId(0xC3), &text).ok());
  detokenizer.Finish(&text);
  EXPECT_TRUE(detokenizer.Push(ByteId(0xA9), &text).ok());
  detokenizer.Finish(&text);
  EXPECT_EQ(text, "\uFFFD\uFFFD");
}

TEST(DetokenizerTest, RandomTextSurvivesEncodeAndDecode) {
  std::mt19937 random(9);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (size_t count = random() % 40; count > 0; --count) {
      static const std::vector<std::string> kParts = {
          "a",      " ",          "  ",     "\n",    "\t",      "Hello",  "\u00E9",
          "\u4F60", "\U0001F600", "\u0301", "<bos>", "<|turn>", "<0x41>", std::string(1, '\0'),
          "\x7F"};
      text += kParts[random() % kParts.size()];
    }
    for (const SpecialTokens mode : {SpecialTokens::kParse, SpecialTokens::kPlain}) {
      EXPECT_EQ(Decode(Mini().Encode(text, mode)), text);
    }
  }
}

}  // namespace
}  // namespace lapidary
