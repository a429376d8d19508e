#include "eval/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lapidary {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<CsvRow> Parsed(std::string_view text) { return ParseCsv(text, "test").value(); }

std::string Problem(std::string_view text) {
  const auto rows = ParseCsv(text, "f.csv");
  return rows.ok() ? "" : rows.error().message;
}

TEST(CsvTest, PlainFieldsKeepTheirSpaces) {
  EXPECT_THAT(Parsed("a, b ,c\n1,2,3\n"),
              ElementsAre(ElementsAre("a", " b ", "c"), ElementsAre("1", "2", "3")));
}

TEST(CsvTest, TheLastLineNeedsNoEnd) { EXPECT_EQ(Parsed("a,b"), Parsed("a,b\n")); }

TEST(CsvTest, QuotedFieldsHoldCommasQuotesAndLineEnds) {
  EXPECT_THAT(Parsed("\"a,b\",\"say \"\"hi\"\"\",\"two\nlines\",\"\"\n"),
              ElementsAre(ElementsAre("a,b", "say \"hi\"", "two\nlines", "")));
  EXPECT_THAT(Parsed("\"\"\"\",\"\"\"\"\"\"\n"), ElementsAre(ElementsAre("\"", "\"\"")));
  EXPECT_THAT(Parsed("\"a\r\nb\",c\r\n"), ElementsAre(ElementsAre("a\r\nb", "c")));
}

TEST(CsvTest, QuotesInsideAnUnquotedFieldAreText) {
  EXPECT_THAT(Parsed("a\"b\"c,d\n"), ElementsAre(ElementsAre("a\"b\"c", "d")));
}

TEST(CsvTest, EmptyFieldsCountAndEmptyLinesDoNot) {
  EXPECT_THAT(Parsed("\n,\n\r\na,,b,\n\n"),
              ElementsAre(ElementsAre("", ""), ElementsAre("a", "", "b", "")));
  EXPECT_THAT(Parsed(""), IsEmpty());
}

TEST(CsvTest, AnyLineEndEndsALine) {
  EXPECT_THAT(Parsed("a\r\nb\rc\nd"),
              ElementsAre(ElementsAre("a"), ElementsAre("b"), ElementsAre("c"), ElementsAre("d")));
}

TEST(CsvTest, AByteOrderMarkIsNoText) {
  EXPECT_THAT(Parsed("\xEF\xBB\xBF\"a\",b\n"), ElementsAre(ElementsAre("a", "b")));
}

TEST(CsvTest, BrokenQuotesAreNamedWithTheirLine) {
  EXPECT_THAT(Problem("a\nb,\"c\nd"), HasSubstr("f.csv: line 2: a field in quotes has no closing"));
  EXPECT_THAT(Problem("\"a\nb\" c,d\n"), HasSubstr("f.csv: line 2: text after the closing quote"));
}

}  // namespace
}  // namespace lapidary
