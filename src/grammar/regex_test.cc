#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>

#include "grammar/regex_pool.h"
#include "grammar/regex_syntax.h"

namespace lapidary::grammar {
namespace {

bool Searches(const std::string& pattern, const std::string& text,
              TextEncoding encoding = TextEncoding::kUtf8) {
  RegexPool pool;
  const Result<RegexId> regex = ParseRegex(&pool, pattern, RegexScope::kSearch, encoding);
  EXPECT_TRUE(regex.ok()) << pattern << ": " << regex.error().message;
  return regex.ok() && pool.Matches(*regex, text);
}

std::string ErrorOf(const std::string& pattern) {
  RegexPool pool;
  const Result<RegexId> regex = ParseRegex(&pool, pattern, RegexScope::kWhole, TextEncoding::kUtf8);
  return regex.ok() ? "" : regex.error().message;
}

std::string RandomPattern(std::mt19937* random, int depth) {
  const auto draw = [&](int n) { return static_cast<int>((*random)() % n); };
  if (depth == 0 || draw(4) == 0) {
    const char* atoms[] = {"a", "b", "c", ".", "[ab]", "[^a]", "(?:)", "\\w"};
    return atoms[draw(8)];
  }
  const std::string inner = RandomPattern(random, depth - 1);
  // The standard library of GCC takes the begin of a look-ahead for the begin of the text.
  const bool has_begin = std::regex_search(inner, std::regex("(^|[^\\[])\\^"));
  switch (draw(has_begin ? 6 : 9)) {
    case 0:
      return "(" + inner + ")*";
    case 1:
      return "(" + inner + ")?";
    case 2:
      return "(" + inner + "){1,3}";
    case 3:
      return "(?:" + inner + "|" + RandomPattern(random, depth - 1) + ")";
    case 4:
      return "^" + inner;
    case 5:
      return inner + "$";
    case 6:
      return "(?=" + inner + ")" + RandomPattern(random, depth - 1);
    case 7:
      return "(?!" + inner + ")" + RandomPattern(random, depth - 1);
    default:
      return inner + RandomPattern(random, depth - 1);
  }
}

TEST(RegexTest, RandomPatternsMatchWhatTheStandardLibraryMatches) {
  std::mt19937 random(1);
  int num_compared = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::string pattern = RandomPattern(&random, 4);
    RegexPool pool;
    const Result<RegexId> regex =
        ParseRegex(&pool, pattern, RegexScope::kSearch, TextEncoding::kUtf8);
    if (!regex.ok()) continue;  // assertions inside repetitions
    const std::regex oracle(pattern);
    for (int i = 0; i < 12; ++i) {
      std::string text;
      for (uint32_t length = random() % 6; length > 0; --length) text += "abcd"[random() % 4];
      EXPECT_EQ(pool.Matches(*regex, text), std::regex_search(text, oracle))
          << pattern << " on " << text;
      ++num_compared;
    }
  }
  EXPECT_GT(num_compared, 20'000);
}

TEST(RegexTest, CharactersAreWholeCodePoints) {
  EXPECT_TRUE(Searches("^.$", "\xE2\x82\xAC"));
  EXPECT_FALSE(Searches("^..$", "\xE2\x82\xAC"));
  EXPECT_TRUE(Searches("^[\\u20ac-\\u20ad]$", "\xE2\x82\xAC"));
  EXPECT_TRUE(Searches("^[^a]$", "\xF0\x9F\x98\x80"));
  EXPECT_FALSE(Searches("^.$", "\xE2\x82"));
  EXPECT_FALSE(Searches(".", "\n"));
}

TEST(RegexTest, InsideJsonStringsCharactersAreEscaped) {
  EXPECT_TRUE(Searches("^a.b$", "a\\\"b", TextEncoding::kJsonString));
  EXPECT_FALSE(Searches("^a.b$", "a\"b", TextEncoding::kJsonString));
  EXPECT_TRUE(Searches("^\\s$", "\\n", TextEncoding::kJsonString));
  EXPECT_TRUE(Searches("^\\\\$", "\\\\", TextEncoding::kJsonString));
  EXPECT_FALSE(Searches("^..$", "\\n", TextEncoding::kJsonString));
}

TEST(RegexTest, UnsupportedConstructsAreNamed) {
  EXPECT_NE(ErrorOf("(a)\\1").find("back reference"), std::string::npos);
  EXPECT_NE(ErrorOf("(?<=a)b").find("look-behind"), std::string::npos);
  EXPECT_NE(ErrorOf("a\\b").find("word boundary"), std::string::npos);
  EXPECT_NE(ErrorOf("(a").find("unmatched ("), std::string::npos);
  EXPECT_NE(ErrorOf("a{3,2}").find("out of order"), std::string::npos);
  EXPECT_NE(ErrorOf(std::string(200, '(') + std::string(200, ')')).find("100"), std::string::npos);
}

TEST(RegexTest, LongCountsAreNotUnrolled) {
  RegexPool pool;
  const Result<RegexId> regex =
      ParseRegex(&pool, "[a-z]{0,900000}", RegexScope::kWhole, TextEncoding::kUtf8);
  ASSERT_TRUE(regex.ok());
  EXPECT_LT(pool.num_nodes(), 100);
  EXPECT_TRUE(pool.Matches(*regex, std::string(1000, 'x')));
}

TEST(RegexTest, AnIntersectionWithoutTextsIsDead) {
  RegexPool pool;
  const RegexId words = *ParseRegex(&pool, "[a-z]+1", RegexScope::kWhole, TextEncoding::kUtf8);
  const RegexId others = *ParseRegex(&pool, "[a-z]+2", RegexScope::kWhole, TextEncoding::kUtf8);
  EXPECT_FALSE(pool.IsLive(pool.And(words, others)));
  EXPECT_TRUE(pool.IsLive(pool.And(words, pool.Not(others))));
  EXPECT_FALSE(pool.IsLive(pool.And(words, pool.Not(words))));
}

TEST(RegexTest, MultiplesAreCountedByRemainders) {
  RegexPool pool;
  const RegexId multiple = pool.Multiple(7);
  for (int number = 0; number < 500; ++number) {
    EXPECT_EQ(pool.Matches(multiple, std::to_string(number)), number % 7 == 0) << number;
  }
}

}  // namespace
}  // namespace lapidary::grammar
