// What most likely comes: text that must, and what answers said before.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "grammar/matcher.h"

namespace lapidary::grammar {
namespace {

// Texts as tokens, then a special token and a stop token. Its tokenizer takes the longest token
// there is, again and again.
struct SpellingVocabulary {
  std::vector<std::string> bytes;
  int32_t quote, stop;
  std::shared_ptr<const TokenVocabulary> vocabulary;

  explicit SpellingVocabulary(std::vector<std::string> texts) : bytes(std::move(texts)) {
    quote = static_cast<int32_t>(bytes.size());
    stop = quote + 1;
    bytes.resize(bytes.size() + 2);
    vocabulary = std::make_shared<TokenVocabulary>(bytes);
  }

  int32_t IdOf(std::string_view text) const {
    return static_cast<int32_t>(std::ranges::find(bytes, text) - bytes.begin());
  }
  std::vector<int32_t> Spell(std::string_view text) const {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      size_t length = text.size();
      while (IdOf(text.substr(0, length)) == std::ssize(bytes)) --length;
      ids.push_back(IdOf(text.substr(0, length)));
      text.remove_prefix(length);
    }
    return ids;
  }
  Matcher MatcherOf(GrammarBuilder builder, NodeId root, TokenRules rules = {}) const {
    Result<Grammar> grammar = std::move(builder).Finish(root);
    EXPECT_TRUE(grammar.ok()) << grammar.error().message;
    return Matcher(std::make_shared<CompiledGrammar>(
        std::move(*grammar), vocabulary, std::vector<int32_t>{stop}, ThoughtLimit{},
        std::move(rules), [this](std::string_view text) { return Spell(text); }));
  }
  std::vector<int32_t> Allowed(Matcher* matcher) const {
    std::vector<uint32_t> words(vocabulary->num_words());
    EXPECT_TRUE(matcher->FillMask(words).ok());
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < vocabulary->num_tokens(); ++token) {
      if ((words[token / 32] >> (token % 32) & 1) != 0) allowed.push_back(token);
    }
    return allowed;
  }
};

using Ids = std::vector<int32_t>;

TEST(SpellingTest, TextThatMustComeIsGuessedInTheTokenizersTokens) {
  const SpellingVocabulary test({"a", "b", "c", "d", "ab", "abc"});
  GrammarBuilder builder;
  const NodeId root = builder.Sequence(
      {builder.Text("abcd"), builder.Choice({builder.Text("a"), builder.Text("b")})});
  Matcher matcher = test.MatcherOf(std::move(builder), root);
  EXPECT_EQ(matcher.LikelyTokens(9), (Ids{test.IdOf("abc"), test.IdOf("d")}));
  EXPECT_EQ(matcher.LikelyTokens(1), Ids{test.IdOf("abc")});
  EXPECT_EQ(matcher.num_accepted(), 0) << "asking moves nothing";
  EXPECT_EQ(test.Allowed(&matcher), (Ids{test.IdOf("a"), test.IdOf("ab"), test.IdOf("abc")}))
      << "any spelling may be sampled";
  ASSERT_TRUE(*matcher.Accept(test.IdOf("ab")));
  EXPECT_EQ(matcher.LikelyTokens(9), (Ids{test.IdOf("c"), test.IdOf("d")})) << "the rest of it";
  ASSERT_TRUE(*matcher.Accept(test.IdOf("c")));
  ASSERT_TRUE(*matcher.Accept(test.IdOf("d")));
  EXPECT_TRUE(matcher.LikelyTokens(9).empty()) << "a or b";
}

TEST(SpellingTest, SpecialTokensAreForcedToo) {
  const SpellingVocabulary test({"a", "b"});
  GrammarBuilder builder;
  const NodeId any = builder.Repeat(builder.Choice({builder.Text("a"), builder.Text("b")}), 0, 9);
  const NodeId quote = builder.Token(test.quote);
  const NodeId root = builder.Sequence({quote, builder.Text("ba"), quote, any});
  Matcher matcher = test.MatcherOf(std::move(builder), root);
  EXPECT_EQ(matcher.LikelyTokens(9), (Ids{test.quote, test.IdOf("b"), test.IdOf("a"), test.quote}));
}

TEST(SpellingTest, HalfACharacterIsNotGuessed) {
  const SpellingVocabulary test({"a", "\xC3\xA9", "\xC3\xA8", "\xC3", "\xA9", "\xA8"});
  GrammarBuilder builder;
  const NodeId root = builder.Choice({builder.Text("a\xC3\xA9"), builder.Text("a\xC3\xA8")});
  Matcher matcher = test.MatcherOf(std::move(builder), root);
  EXPECT_EQ(matcher.LikelyTokens(9), Ids{test.IdOf("a")});
}

TEST(SpellingTest, ATokenThatARuleWithholdsIsNotGuessed) {
  const SpellingVocabulary test({"a", "b", "ab"});
  GrammarBuilder builder;
  const NodeId root = builder.Text("ab");
  Matcher matcher = test.MatcherOf(std::move(builder), root, {.banned_runs = {{test.IdOf("ab")}}});
  EXPECT_TRUE(matcher.LikelyTokens(9).empty());
}

TEST(SpellingTest, TokensOfALongTextSpellTheWhole) {
  const SpellingVocabulary test({"a", "b", "ab", "ba", "aab", "abba"});
  std::mt19937 random(3);
  std::string text;
  for (int i = 0; i < 2000; ++i) text.push_back(random() % 2 == 0 ? 'a' : 'b');
  GrammarBuilder builder;
  const NodeId root = builder.Text(text);
  std::string spelled;
  for (const int32_t id : test.MatcherOf(std::move(builder), root).LikelyTokens(9999)) {
    spelled += test.bytes[id];
  }
  EXPECT_EQ(spelled, text);
}

TEST(SpellingTest, AnswersSpellAsThoseBeforeThem) {
  const SpellingVocabulary test({"a", "b", "c", "ab", "abc"});
  GrammarBuilder builder;
  const NodeId root = builder.Sequence(
      {builder.Text("abc"), builder.Choice({builder.Text("b"), builder.Text("c")})});
  Matcher first = test.MatcherOf(std::move(builder), root);
  const auto say = [&](std::vector<std::string> texts) {
    Matcher matcher = first;
    for (const std::string& text : texts) {
      matcher.Learn(test.IdOf(text));
      EXPECT_TRUE(*matcher.Accept(test.IdOf(text)));
    }
  };
  say({"ab", "c", "b"});
  EXPECT_EQ(first.LikelyTokens(9), (Ids{test.IdOf("ab"), test.IdOf("c")}))
      << "what was chosen once says little";
  say({"ab", "c", "b"});
  EXPECT_EQ(first.LikelyTokens(9), (Ids{test.IdOf("ab"), test.IdOf("c"), test.IdOf("b")}));
  say({"abc", "c"});
  EXPECT_EQ(first.LikelyTokens(9), (Ids{test.IdOf("ab"), test.IdOf("c")}));
  say({"abc", "c"});
  EXPECT_EQ(first.LikelyTokens(9), Ids{test.IdOf("abc")});
}

TEST(SpellingTest, WhatMayBeRepeatedIsGuessedOnce) {
  const SpellingVocabulary test({"a", "b"});
  GrammarBuilder builder;
  const NodeId any = builder.Terminal(builder.regex().Repeat(
      builder.regex().Bytes(ByteSet::Range('a', 'b')), 0, RegexPool::kUnbounded));
  Matcher matcher = test.MatcherOf(std::move(builder), any);
  for (int i = 0; i < 5; ++i) {
    matcher.Learn(test.IdOf("a"));
    ASSERT_TRUE(*matcher.Accept(test.IdOf("a")));
  }
  EXPECT_EQ(matcher.LikelyTokens(9), Ids{test.IdOf("a")});
}

TEST(SpellingTest, EveryGuessIsAllowedAndMasksDoNotChange) {
  const SpellingVocabulary test({"a", "b", "c", "ab", "bc", "abc", "cab", "aa", "bcab"});
  std::mt19937 random(11);
  size_t num_guessed = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> texts;
    GrammarBuilder builder;
    std::vector<NodeId> nodes;
    const std::string common = round % 2 == 0 ? "abcab" : "";
    for (int i = 0; i < 4; ++i) {
      std::string text = common;
      for (int length = 1 + static_cast<int>(random() % 7); length > 0; --length) {
        text.push_back("abc"[random() % 3]);
      }
      nodes.push_back(builder.Text(text));
      texts.push_back(std::move(text));
    }
    const NodeId root = builder.Choice(nodes);
    Matcher matcher = test.MatcherOf(std::move(builder), root);
    // All walks there are.
    std::vector<std::string> said;
    const std::function<void(const std::string&)> walk = [&](const std::string& text) {
      const Ids allowed = test.Allowed(&matcher);
      const Ids likely = matcher.LikelyTokens(99);
      num_guessed += likely.size();
      for (const int32_t token : likely) ASSERT_TRUE(*matcher.Accept(token));
      matcher.Rollback(static_cast<int>(likely.size()));
      ASSERT_EQ(test.Allowed(&matcher), allowed);
      for (int32_t token = 0; token < test.vocabulary->num_tokens(); ++token) {
        const bool is_allowed = std::ranges::find(allowed, token) != allowed.end();
        if (is_allowed && random() % 2 == 0) matcher.Learn(token);
        ASSERT_EQ(*matcher.Accept(token), is_allowed) << text << " then " << test.bytes[token];
        if (!is_allowed) continue;
        if (token == test.stop) {
          said.push_back(text);
        } else {
          walk(text + test.bytes[token]);
        }
        matcher.Rollback(1);
      }
    };
    walk("");
    for (std::vector<std::string>* list : {&said, &texts}) {
      std::ranges::sort(*list);
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    EXPECT_EQ(said, texts);
  }
  EXPECT_GT(num_guessed, 100u);
}

}  // namespace
}  // namespace lapidary::grammar
