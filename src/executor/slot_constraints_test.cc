#include "executor/slot_constraints.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "grammar/constraint.h"

namespace lapidary {
namespace {

using grammar::Constraint;

constexpr int32_t kStop = 256;
constexpr int32_t kNumTokens = 300;  // the bytes, the stop token, and tokens without a meaning

std::shared_ptr<const grammar::CompiledGrammar> Regex(const std::string& regex) {
  static const auto vocabulary = [] {
    std::vector<std::string> bytes(kNumTokens);
    for (int byte = 0; byte < 256; ++byte) bytes[byte] = std::string(1, static_cast<char>(byte));
    return std::make_shared<grammar::TokenVocabulary>(bytes);
  }();
  auto compiled = grammar::Compile({.kind = Constraint::Kind::kRegex, .text = regex},
                                   {.vocabulary = vocabulary, .stop_tokens = {kStop}});
  EXPECT_TRUE(compiled.ok()) << compiled.error().message;
  return *compiled;
}

class SlotConstraintsTest : public testing::Test {
 protected:
  SlotConstraintsTest() { constraints_.Reserve(4); }

  void Bind(int32_t slot, const std::string& regex, std::vector<int32_t> tokens = {},
            int32_t prompt_len = 0) {
    SlotBinding binding;
    binding.slot = slot;
    binding.grammar = regex.empty() ? nullptr : Regex(regex);
    binding.tokens = std::move(tokens);
    binding.prompt_len = prompt_len;
    constraints_.Bind(binding);
  }
  const RowMasks& Make(int32_t slot, const std::vector<int32_t>& drafts = {}) {
    grammar::Work work(kMaskStepsPerThread);
    constraints_.MakeMasks(slot, drafts, work, &masks_);
    return masks_;
  }
  // The allowed tokens of a row as text, the stop token as '$'; "*" if every token is allowed.
  std::string Allowed(int32_t row) const {
    std::string allowed;
    int num_bits = 0;
    for (const uint32_t word : masks_.Mask(row)) num_bits += std::popcount(word);
    if (num_bits >= kNumTokens) return "*";
    for (int32_t token = 0; token < kNumTokens; ++token) {
      if ((masks_.Mask(row)[token / 32] >> (token % 32) & 1) == 0) continue;
      allowed += token == kStop ? '$' : static_cast<char>(token);
    }
    return allowed;
  }

  SlotConstraints constraints_;
  RowMasks masks_;
  grammar::Work enough_{int64_t{1} << 50};
};

TEST_F(SlotConstraintsTest, RowsFollowTheirDrafts) {
  Bind(1, "a[bc]d?");
  Make(1, {'a', 'c', 'd'});
  EXPECT_EQ(Allowed(0), "a");
  EXPECT_EQ(Allowed(1), "bc");
  EXPECT_EQ(Allowed(2), "d$");
  EXPECT_EQ(Allowed(3), "$");
  EXPECT_EQ(masks_.only, (std::vector<int32_t>{'a', -1, -1, kStop}));
  EXPECT_EQ(masks_.num_made, 4);
  // Nothing of it counts until it was sampled.
  Make(1);
  EXPECT_EQ(Allowed(0), "a");
}

TEST_F(SlotConstraintsTest, BehindAForbiddenDraftEverythingIsAllowed) {
  Bind(0, "a[bc]d?");
  Make(0, {'a', 'x', 'd'});
  EXPECT_EQ(Allowed(1), "bc");
  EXPECT_EQ(Allowed(2), "*");
  EXPECT_EQ(Allowed(3), "*");
  Bind(0, "a");
  Make(0, {'a', kStop, 'x'});  // and behind the end
  EXPECT_EQ(Allowed(1), "$");
  EXPECT_EQ(Allowed(2), "*");
  EXPECT_EQ(Allowed(3), "*");
}

TEST_F(SlotConstraintsTest, SampledTokensMoveASlotOnToItsEnd) {
  Bind(2, "ab");
  for (const int32_t token : {int32_t{'a'}, int32_t{'b'}}) {
    ASSERT_TRUE(constraints_.IsActive(2));
    ASSERT_TRUE(constraints_.Advance(2, token, enough_).ok());
  }
  Make(2);
  EXPECT_EQ(Allowed(0), "$");
  ASSERT_TRUE(constraints_.Advance(2, kStop, enough_).ok());
  EXPECT_FALSE(constraints_.IsActive(2));
}

TEST_F(SlotConstraintsTest, ABindingGoesOnBehindItsOutputs) {
  Bind(0, "abc", {'x', 'y', 'a', 'b'}, /*prompt_len=*/2);
  Make(0);
  EXPECT_EQ(Allowed(0), "c");
  Bind(0, "");
  EXPECT_FALSE(constraints_.IsActive(0));
}

TEST_F(SlotConstraintsTest, RoundsWithDraftsGiveTheMasksOfSingleSteps) {
  const std::string regex = "([ab]{1,3}c|d(e|f)*g){2,9}";
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Bind(0, regex);
    Bind(1, regex);
    while (constraints_.IsActive(0)) {
      std::vector<int32_t> drafts;
      for (int i = 0; i < 4; ++i) drafts.push_back("abcdefg"[random() % 7]);
      RowMasks together;
      constraints_.MakeMasks(0, drafts, enough_, &together);
      for (int32_t row = 0; row <= std::ssize(drafts) && constraints_.IsActive(1); ++row) {
        Make(1);
        ASSERT_TRUE(std::ranges::equal(masks_.Mask(0), together.Mask(row))) << row;
        const std::string allowed = Allowed(0);
        const char drawn = allowed[random() % allowed.size()];
        const int32_t token = drawn == '$' ? kStop : drawn;
        ASSERT_TRUE(constraints_.Advance(0, token, enough_).ok());
        ASSERT_TRUE(constraints_.Advance(1, token, enough_).ok());
        if (row < std::ssize(drafts) && token != drafts[row]) break;
      }
    }
    EXPECT_FALSE(constraints_.IsActive(1));
  }
}

}  // namespace
}  // namespace lapidary
