#include "base/excerpt.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

TEST(ExcerptTest, TextThatIsShortEnoughStaysWhole) {
  EXPECT_EQ(Excerpt(""), "");
  EXPECT_EQ(Excerpt("abc", 3), "abc");
  EXPECT_EQ(Excerpt("äöü", 3), "äöü");
  EXPECT_EQ(Excerpt(std::string(200, 'x')), std::string(200, 'x'));
}

TEST(ExcerptTest, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(Excerpt("abcd", 3), "abc...");
  EXPECT_EQ(Excerpt("äöüß", 3), "äöü...");
  EXPECT_EQ(Excerpt("\xF0\x9F\x98\x80\xF0\x9F\x98\x80", 1), "\xF0\x9F\x98\x80...");
  EXPECT_EQ(Excerpt(std::string(33'000'000, 'x')).size(), 203u);
}

TEST(ExcerptTest, BytesThatAreNoTextAreCutToo) {
  EXPECT_EQ(Excerpt(std::string(1000, '\x80'), 10).size(), 43u);
}

}  // namespace
}  // namespace lapidary
