#include "grammar/matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace lapidary::grammar {
namespace {

// Bytes a to d, pairs and longer runs of them, two special tokens and a stop token at the end.
struct TestVocabulary {
  std::vector<std::string> bytes;
  int32_t quote, other, stop;
  std::shared_ptr<const TokenVocabulary> vocabulary;

  TestVocabulary() {
    for (char a : std::string("abcd\"\\")) {
      bytes.push_back(std::string(1, a));
      for (char b : std::string("abcd\"")) {
        bytes.push_back(std::string{a, b});
        bytes.push_back(std::string{a, b, 'a'});
        bytes.push_back(std::string{b, a, 'c', 'd', b});
      }
    }
    bytes.push_back("a");  // a second token of the same text
    bytes.push_back("\xE2\x82\xAC");
    bytes.push_back("\xE2\x82");
    quote = static_cast<int32_t>(bytes.size());
    other = quote + 1;
    stop = quote + 2;
    bytes.resize(bytes.size() + 3);
    vocabulary = std::make_shared<TokenVocabulary>(bytes);
  }
};

std::shared_ptr<const CompiledGrammar> Compile(GrammarBuilder builder, NodeId root,
                                               const TestVocabulary& test) {
  Result<Grammar> grammar = std::move(builder).Finish(root);
  EXPECT_TRUE(grammar.ok()) << grammar.error().message;
  return std::make_shared<CompiledGrammar>(std::move(*grammar), test.vocabulary,
                                           std::vector<int32_t>{test.stop});
}

std::vector<int32_t> AllowedTokens(Matcher* matcher, const TestVocabulary& test) {
  std::vector<uint32_t> words(test.vocabulary->num_words());
  EXPECT_TRUE(matcher->FillMask(words).ok());
  std::vector<int32_t> allowed;
  for (int32_t token = 0; token < test.vocabulary->num_tokens(); ++token) {
    if ((words[token / 32] >> (token % 32) & 1) != 0) allowed.push_back(token);
  }
  return allowed;
}

// A random grammar and, independently of any automaton, the set of its texts: special tokens are
// written as upper-case letters.
struct RandomGrammar {
  GrammarBuilder builder;
  std::mt19937* random;
  const TestVocabulary* test;
  using Texts = std::set<std::string>;
  struct Part {
    NodeId node;
    Texts texts;
  };

  int Draw(int n) { return static_cast<int>((*random)() % n); }
  static Texts Join(const Texts& a, const Texts& b) {
    // Too many to enumerate: one text that is too long stands for them.
    if (a.size() * b.size() > 3000) return {std::string(24, 'x')};
    Texts joined;
    for (const std::string& x : a) {
      for (const std::string& y : b) {
        joined.insert((x + y).substr(0, 24));
      }
    }
    return joined;
  }
  static Texts Union(Texts a, const Texts& b) {
    a.insert(b.begin(), b.end());
    return a;
  }

  Part Make(int depth) {
    if (depth == 0 || Draw(5) == 0) {
      switch (Draw(5)) {
        case 0:
          return {builder.Token(test->quote), {"Q"}};
        case 1:
          return {builder.Token(test->other), {"O"}};
        case 2: {
          ByteSet bytes = ByteSet::Of('a') | ByteSet::Of('b');
          RegexId regex = builder.regex().Repeat(builder.regex().Bytes(bytes), 0, 2);
          return {builder.Terminal(regex), {"", "a", "b", "aa", "ab", "ba", "bb"}};
        }
        case 3:
          return {builder.Text("\""), {"\""}};
        default: {
          std::string text;
          for (int length = 1 + Draw(3); length > 0; --length) text += "abcd"[Draw(4)];
          return {builder.Text(text), {text}};
        }
      }
    }
    const Part a = Make(depth - 1);
    switch (Draw(4)) {
      case 0: {
        const Part b = Make(depth - 1);
        return {builder.Choice({a.node, b.node}), Union(a.texts, b.texts)};
      }
      case 1: {
        const uint32_t min = Draw(2);
        const uint32_t max = min + 1 + Draw(2);
        Texts all = min == 0 ? Texts{""} : Texts{};
        Texts power = {""};
        for (uint32_t count = 1; count <= max; ++count) {
          power = Join(power, a.texts);
          if (count >= min) all = Union(all, power);
        }
        return {builder.Repeat(a.node, min, max), all};
      }
      default: {
        const Part b = Make(depth - 1);
        return {builder.Sequence({a.node, b.node}), Join(a.texts, b.texts)};
      }
    }
  }
};

TEST(Matcher, ATokenOfMoreBytesThanATrieCountsIsNeverOffered) {
  const std::vector<std::string> bytes = {"a", std::string(70'000, 'a'), std::string(65'535, 'a'),
                                          ""};
  const auto vocabulary = std::make_shared<TokenVocabulary>(bytes);
  GrammarBuilder builder;
  RegexPool& regex = builder.regex();
  const NodeId root = builder.Terminal(regex.Repeat(regex.Byte('a'), 0, kUnbounded));
  Result<Grammar> grammar = std::move(builder).Finish(root);
  ASSERT_TRUE(grammar.ok());
  Matcher matcher(
      std::make_shared<CompiledGrammar>(std::move(*grammar), vocabulary, std::vector<int32_t>{3}));
  std::vector<uint32_t> words(vocabulary->num_words());
  ASSERT_TRUE(matcher.FillMask(words).ok());
  EXPECT_EQ(words[0], 0b1101u);
}

TEST(MatcherTest, OnRandomGrammarsTheMaskIsExactlyWhatCanBeCompleted) {
  const TestVocabulary test;
  std::mt19937 random(7);
  int num_masks = 0;
  for (int round = 0; round < 400; ++round) {
    RandomGrammar grammar{.builder = {}, .random = &random, .test = &test};
    const RandomGrammar::Part root = grammar.Make(4);
    const auto is_truncated = [](const std::string& text) { return text.size() == 24; };
    if (std::ranges::any_of(root.texts, is_truncated)) continue;
    Matcher matcher(Compile(std::move(grammar.builder), root.node, test));
    std::string text;
    for (int step = 0; step < 6; ++step) {
      const std::vector<int32_t> allowed = AllowedTokens(&matcher, test);
      std::vector<int32_t> expected;
      std::vector<int32_t> accepted;
      for (int32_t token = 0; token < test.vocabulary->num_tokens(); ++token) {
        std::string longer = text + test.bytes[token];
        if (token == test.quote) longer += "Q";
        if (token == test.other) longer += "O";
        const auto found = root.texts.lower_bound(longer);
        const bool fits = token == test.stop
                              ? root.texts.contains(text)
                              : found != root.texts.end() && found->starts_with(longer);
        if (fits) expected.push_back(token);
        const Result<bool> accept = matcher.Accept(token);
        ASSERT_TRUE(accept.ok());
        if (*accept) {
          accepted.push_back(token);
          matcher.Rollback(1);
        }
      }
      EXPECT_EQ(allowed, expected) << "after " << text;
      EXPECT_EQ(accepted, expected) << "after " << text;
      EXPECT_EQ(matcher.CanStop(), root.texts.contains(text));
      const auto only = matcher.OnlyAllowedToken();
      ASSERT_TRUE(only.ok());
      EXPECT_EQ(only->has_value(), expected.size() == 1);
      if (only->has_value()) {
        EXPECT_EQ(**only, expected[0]);
      }
      ++num_masks;
      if (allowed.empty()) break;
      const int32_t token = allowed[random() % allowed.size()];
      ASSERT_TRUE(*matcher.Accept(token));
      if (token == test.stop) {
        EXPECT_TRUE(matcher.IsTerminated());
        EXPECT_TRUE(AllowedTokens(&matcher, test).empty());
        break;
      }
      text += token == test.quote ? "Q" : token == test.other ? "O" : test.bytes[token];
    }
  }
  EXPECT_GT(num_masks, 800);
}

// Every text of up to five of four characters, one of them of two bytes: enough that states come up
// often in a walk.
std::vector<std::string> AllShortTexts() {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < 5; ++i) {
    for (const char* character : {"a", "b", "c", "\xC3\xA9"}) texts.push_back(texts[i] + character);
  }
  return texts;
}

RegexId AnyCharacter(RegexPool* regex) {
  return regex->Or(regex->Bytes(ByteSet::Range('a', 'c')), regex->Literal("\xC3\xA9"));
}

// On a random text of the regex and then "cc", each mask against what the matcher says about every
// token by itself.
void ExpectMasksFitTheTokens(GrammarBuilder builder, RegexId text) {
  const std::vector<std::string> bytes = AllShortTexts();
  const int32_t stop = 0;
  const auto vocabulary = std::make_shared<TokenVocabulary>(bytes);
  const NodeId root = builder.Sequence({builder.Terminal(text), builder.Text("cc")});
  Result<Grammar> grammar = std::move(builder).Finish(root);
  ASSERT_TRUE(grammar.ok());
  const auto compiled = std::make_shared<CompiledGrammar>(std::move(*grammar), vocabulary,
                                                          std::vector<int32_t>{stop});
  std::mt19937 random(5);
  Matcher matcher(compiled);
  for (int step = 0; step < 12; ++step) {
    std::vector<uint32_t> words(vocabulary->num_words());
    ASSERT_TRUE(matcher.FillMask(words).ok());
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < vocabulary->num_tokens(); ++token) {
      const bool is_set = (words[token / 32] >> (token % 32) & 1) != 0;
      ASSERT_EQ(*matcher.Accept(token), is_set) << "token " << bytes[token] << " in step " << step;
      if (!is_set) continue;
      matcher.Rollback(1);
      if (token != stop) allowed.push_back(token);
    }
    if (allowed.empty()) break;
    ASSERT_TRUE(*matcher.Accept(allowed[random() % allowed.size()]));
  }
}

TEST(MatcherTest, WholeSubtreesAreTakenOnlyWhereAllOfThemFits) {
  GrammarBuilder builder;
  RegexPool& regex = builder.regex();
  const RegexId listed = regex.Or(regex.Literal("ab"), regex.Literal("b\xC3\xA9"
                                                                     "a"));
  const RegexId others = regex.And(regex.Repeat(AnyCharacter(&regex), 0, 40), regex.Not(listed));
  ExpectMasksFitTheTokens(std::move(builder), others);
}

TEST(MatcherTest, AMaskOfMostTokensLeavesOutTheOthers) {
  GrammarBuilder builder;
  RegexPool& regex = builder.regex();
  const RegexId any = regex.Repeat(AnyCharacter(&regex), 0, kUnbounded);
  const RegexId forbidden = regex.Concat(any, regex.Concat(regex.Literal("cab"), any));
  const RegexId others = regex.And(any, regex.Not(forbidden));
  ExpectMasksFitTheTokens(std::move(builder), others);
}

TEST(MatcherTest, RollbackReturnsToTheSameMasks) {
  const TestVocabulary test;
  GrammarBuilder builder;
  const NodeId item = builder.Choice({builder.Text("ab"), builder.Token(test.quote)});
  Matcher matcher(Compile(std::move(builder), builder.Repeat(item, 2, 40), test));
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> masks = {AllowedTokens(&matcher, test)};
  for (int step = 0; step < 200; ++step) {
    if (random() % 3 == 0 || masks.back().empty()) {
      const int back = static_cast<int>(random() % masks.size());
      matcher.Rollback(back);
      masks.resize(masks.size() - back);
      EXPECT_EQ(AllowedTokens(&matcher, test), masks.back());
      continue;
    }
    ASSERT_TRUE(*matcher.Accept(masks.back()[random() % masks.back().size()]));
    masks.push_back(AllowedTokens(&matcher, test));
  }
}

TEST(MatcherTest, SpecialTokensAreNotTheirText) {
  TestVocabulary test;
  GrammarBuilder builder;
  RegexPool& regex = builder.regex();
  const NodeId text = builder.Terminal(regex.Repeat(regex.Bytes(ByteSet::All()), 0, kUnbounded));
  const NodeId quote = builder.Token(test.quote);
  const NodeId root = builder.Sequence({quote, text, builder.Token(test.quote)});
  Matcher matcher(Compile(std::move(builder), root, test));
  EXPECT_EQ(AllowedTokens(&matcher, test), std::vector<int32_t>{test.quote});
  ASSERT_TRUE(*matcher.Accept(test.quote));
  const std::vector<int32_t> allowed = AllowedTokens(&matcher, test);
  EXPECT_EQ(static_cast<int32_t>(allowed.size()), test.quote + 1);  // all text, and the end
  EXPECT_FALSE(*matcher.Accept(test.other));
}

TEST(MatcherTest, RightRecursionDoesNotNest) {
  const TestVocabulary test;
  GrammarBuilder builder;
  const NodeId list = builder.Forward("list");
  builder.Resolve(
      list, builder.Choice({builder.Sequence({builder.Text("ab"), list}), builder.Text("c")}));
  Matcher matcher(Compile(std::move(builder), list, test));
  const int32_t ab = static_cast<int32_t>(std::ranges::find(test.bytes, "ab") - test.bytes.begin());
  for (int i = 0; i < 50'000; ++i) ASSERT_TRUE(*matcher.Accept(ab));
}

TEST(MatcherTest, LimitsAreErrorsThatNameThem) {
  const TestVocabulary test;
  {  // a^n b^n nests without end
    GrammarBuilder builder;
    const NodeId nest = builder.Forward("nest");
    builder.Resolve(nest,
                    builder.Choice({builder.Sequence({builder.Text("a"), nest, builder.Text("b")}),
                                    builder.Text("c")}));
    Matcher matcher(Compile(std::move(builder), nest, test));
    std::string message;
    for (int i = 0; i < 30'000 && message.empty(); ++i) {
      const Result<bool> accepted = matcher.Accept(0);
      if (!accepted.ok()) message = accepted.error().message;
    }
    EXPECT_NE(message.find("20,000 levels"), std::string::npos) << message;
  }
  {  // ways to read a text that double with every byte
    GrammarBuilder builder;
    const NodeId twice = builder.Forward("twice");
    const NodeId a = builder.Text("a");
    builder.Resolve(twice, builder.Choice({builder.Sequence({a, twice, builder.Text("b")}),
                                           builder.Sequence({a, twice, builder.Text("c")}), a}));
    Matcher matcher(Compile(std::move(builder), twice, test));
    std::string message;
    for (int i = 0; i < 100 && message.empty(); ++i) {
      const Result<bool> accepted = matcher.Accept(0);
      if (!accepted.ok()) message = accepted.error().message;
    }
    EXPECT_NE(message.find("meanings"), std::string::npos) << message;
  }
}

TEST(GrammarTest, LeftRecursionAndEmptyGrammarsAreRefused) {
  {
    GrammarBuilder builder;
    const NodeId sum = builder.Forward("sum");
    builder.Resolve(
        sum, builder.Choice(
                 {builder.Sequence({builder.Empty(), sum, builder.Text("+")}), builder.Text("1")}));
    const Result<Grammar> grammar = std::move(builder).Finish(sum);
    ASSERT_FALSE(grammar.ok());
    EXPECT_NE(grammar.error().message.find("left-recursive"), std::string::npos);
  }
  {
    GrammarBuilder builder;
    const NodeId endless = builder.Forward("endless");
    builder.Resolve(endless, builder.Sequence({builder.Text("a"), endless}));
    const Result<Grammar> grammar = std::move(builder).Finish(endless);
    ASSERT_FALSE(grammar.ok());
    EXPECT_NE(grammar.error().message.find("no text"), std::string::npos);
  }
}

std::shared_ptr<const CompiledGrammar> Free(const TestVocabulary& test, TokenRules rules) {
  return std::make_shared<CompiledGrammar>(std::nullopt, test.vocabulary,
                                           std::vector<int32_t>{test.stop}, ThoughtLimit{},
                                           std::move(rules));
}

TEST(TokenRules, NothingEndsAnAnswerBeforeItsLeastNumberOfTokens) {
  const TestVocabulary test;
  Matcher matcher(Free(test, {.min_tokens = 2, .late_tokens = {test.stop, test.other}}));
  const auto allowed = AllowedTokens(&matcher, test);
  EXPECT_EQ(allowed.size(), test.bytes.size() - 2);
  EXPECT_FALSE(*matcher.Accept(test.stop));
  EXPECT_FALSE(*matcher.Accept(test.other));
  ASSERT_TRUE(*matcher.Accept(0));
  EXPECT_FALSE(*matcher.Accept(test.stop));
  ASSERT_TRUE(*matcher.Accept(0));
  EXPECT_EQ(AllowedTokens(&matcher, test).size(), test.bytes.size());
  ASSERT_TRUE(*matcher.Accept(test.stop));
  matcher.Rollback(2);
  EXPECT_FALSE(*matcher.Accept(test.stop)) << "too early again";
}

TEST(TokenRules, ABannedRunIsNeverCompleted) {
  const TestVocabulary test;
  Matcher matcher(Free(test, {.banned_runs = {{3}, {4, 5}, {4, 4, 6}}}));
  EXPECT_FALSE(*matcher.Accept(3));
  ASSERT_TRUE(*matcher.Accept(5)) << "only behind 4";
  ASSERT_TRUE(*matcher.Accept(4));
  EXPECT_FALSE(*matcher.Accept(5));
  ASSERT_TRUE(*matcher.Accept(4));
  const auto allowed = AllowedTokens(&matcher, test);
  EXPECT_EQ(allowed.size(), test.bytes.size() - 3);
  for (const int32_t token : {3, 5, 6}) {
    EXPECT_EQ(std::ranges::count(allowed, token), 0) << token;
    EXPECT_FALSE(*matcher.Accept(token));
  }
  ASSERT_TRUE(*matcher.Accept(7));
  ASSERT_TRUE(*matcher.Accept(6));
}

TEST(TokenRules, WhatTheGrammarLeavesNoChoiceInGoesBeforeThem) {
  const TestVocabulary test;
  const auto id_of = [&](const std::string& text) {
    return static_cast<int32_t>(std::ranges::find(test.bytes, text) - test.bytes.begin());
  };
  GrammarBuilder builder;
  const NodeId root = builder.Text("dd");
  Result<Grammar> grammar = std::move(builder).Finish(root);
  const auto compiled = std::make_shared<CompiledGrammar>(
      std::move(*grammar), test.vocabulary, std::vector<int32_t>{test.stop}, ThoughtLimit{},
      TokenRules{.min_tokens = 9, .late_tokens = {test.stop}, .banned_runs = {{id_of("dd")}}});
  Matcher matcher(compiled);
  EXPECT_EQ(AllowedTokens(&matcher, test), std::vector<int32_t>{id_of("d")});
  ASSERT_TRUE(*matcher.Accept(id_of("d")));
  ASSERT_TRUE(*matcher.Accept(id_of("d")));
  EXPECT_EQ(AllowedTokens(&matcher, test), std::vector<int32_t>{test.stop}) << "it is complete";
  EXPECT_TRUE(*matcher.Accept(test.stop));
}

}  // namespace
}  // namespace lapidary::grammar
