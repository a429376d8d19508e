#include "text/unicode.h"

#include <gtest/gtest.h>

#include "text/utf8.h"

namespace lapidary {
namespace {

constexpr uint32_t kLastCodePoint = 0x10FFFF;

std::string Encoded(uint32_t code_point) {
  std::string text;
  AppendUtf8(code_point, &text);
  return text;
}

bool IsSurrogate(uint32_t code_point) { return code_point >= 0xD800 && code_point <= 0xDFFF; }

TEST(ReadUtf8, ReadsEveryCodePointAndSurrogatesOnlyWhereAllowed) {
  for (uint32_t code_point = 0; code_point <= kLastCodePoint; ++code_point) {
    const std::string text = Encoded(code_point) + "\x80";  // what follows does not matter
    const Utf8Char python = ReadUtf8(text, Surrogates::kAllowed);
    ASSERT_EQ(python.status, Utf8Status::kComplete) << code_point;
    ASSERT_EQ(python.code_point, code_point);
    ASSERT_EQ(python.num_bytes, text.size() - 1);
    const Utf8Char strict = ReadUtf8(text);
    ASSERT_EQ(strict.status == Utf8Status::kComplete, !IsSurrogate(code_point)) << code_point;
    ASSERT_EQ(strict.code_point, IsSurrogate(code_point) ? 0 : code_point);
  }
}

TEST(ReadUtf8, EveryCutOfACharacterIsTruncated) {
  for (const uint32_t code_point : {0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    const std::string text = Encoded(code_point);
    for (size_t num_bytes = 1; num_bytes < text.size(); ++num_bytes) {
      EXPECT_EQ(ReadUtf8(text.substr(0, num_bytes)).status, Utf8Status::kTruncated) << code_point;
    }
  }
}

// Together with the first test this leaves no other bytes to be read as a character: neither an
// overlong form nor anything above the last code point encodes to itself.
TEST(DecodeAt, WhatIsReadIsEncodedAsItWasAndTheRestIsOneByteEach) {
  // The ends of every range of lead and continuation bytes.
  constexpr std::string_view kBytes(
      "\x00\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC1\xC2\xDF\xE0\xE1\xEC\xED\xEE\xEF\xF0\xF1\xF3\xF4\xF5"
      "\xFF",
      24);
  std::string text(5, ' ');  // the four bytes at offset 1
  for (const char first : kBytes) {
    for (const char second : kBytes) {
      for (const char third : kBytes) {
        for (const char fourth : kBytes) {
          text = {' ', first, second, third, fourth};
          const CodePoint found = DecodeAt(text, 1);
          ASSERT_EQ(Encoded(found.value), text.substr(1, found.num_bytes));
          if (found.value & kInvalidByte) {
            ASSERT_EQ(found.num_bytes, 1u);
          } else {
            ASSERT_LE(found.value, kLastCodePoint);
          }
        }
      }
    }
  }
}

TEST(DecodeAt, TheEndOfTheTextHasNoBytes) {
  EXPECT_EQ(DecodeAt("a", 1).num_bytes, 0u);
  EXPECT_EQ(DecodeAt("", 0).num_bytes, 0u);
}

TEST(CountCodePoints, CountsSurrogatesAndBadBytesAsPythonWould) {
  EXPECT_EQ(CountCodePoints("a\u00e9\u20ac\U0001F600"), 4u);
  EXPECT_EQ(CountCodePoints("\xED\xA0\x80"), 1u);      // U+D800
  EXPECT_EQ(CountCodePoints("\xE2\x82"), 2u);          // cut short
  EXPECT_EQ(CountCodePoints("\xF4\x90\x80\x80"), 4u);  // above U+10FFFF
}

}  // namespace
}  // namespace lapidary
