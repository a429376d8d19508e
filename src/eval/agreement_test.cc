#include "eval/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "synth/byte_tokenizer.h"

namespace lapidary {
namespace {

using testing::HasSubstr;
using testing::Not;

class AgreementTest : public testing::Test {
 protected:
  // The answer `text` to item `id`.
  PebbleAnswer Answer(const std::string& id, const std::string& text, bool is_right) const {
    return {.id = id,
            .is_right = is_right,
            .text = text,
            .ids = tokenizer_.Encode(text, SpecialTokens::kPlain)};
  }

  const Tokenizer tokenizer_ = Tokenizer::FromJson(ByteTokenizer(512).value().dump(), "t").value();
};

TEST_F(AgreementTest, TokensAndVerdictsAreCountedApart) {
  const std::vector<PebbleAnswer> ours = {Answer("a", "same", true), Answer("b", "7 apples", true),
                                          Answer("c", "x", false), Answer("d", "yes", true)};
  const std::vector<PebbleAnswer> references = {
      Answer("a", "same", true), Answer("b", "7 pears", true), Answer("c", "y", false),
      Answer("d", "yes and no", false)};
  const Agreement agreement = CompareAnswers(tokenizer_, ours, references);
  EXPECT_EQ(agreement.count, 4);
  EXPECT_EQ(agreement.same_answer(), 1);
  EXPECT_EQ(agreement.same_verdict(), 3);  // only d's differ
  const Json json = agreement.ToJson();
  EXPECT_EQ(json["same_answer"], 1);
  EXPECT_EQ(json["same_verdict"], 3);
  ASSERT_EQ(json["differences"].size(), 3u);
  EXPECT_EQ(json["differences"][2]["id"], "d");
  EXPECT_EQ(json["differences"][2]["same_verdict"], false);
}

TEST_F(AgreementTest, DifferencesSayWhereAndHowTheAnswersGoOn) {
  const Agreement agreement =
      CompareAnswers(tokenizer_, {Answer("b", "7 apples", true)}, {Answer("b", "7 pears", true)});
  ASSERT_EQ(agreement.differences.size(), 1u);
  const Agreement::Difference& one = agreement.differences[0];
  EXPECT_EQ(one.position, 2);
  EXPECT_EQ(one.continuation, "apples");
  EXPECT_EQ(one.reference_continuation, "pears");
  const std::string text = agreement.ToText("FILE", false);
  EXPECT_THAT(text, HasSubstr("token for token: 0 of 1; same verdict: 1 of 1 (reference: FILE)"));
  EXPECT_THAT(text, HasSubstr("b differs from token 2"));
  EXPECT_THAT(text, HasSubstr("(right) \"pears\""));
}

TEST_F(AgreementTest, AnAnswerThatEndsEarlyDiffersAtItsEnd) {
  const Agreement agreement =
      CompareAnswers(tokenizer_, {Answer("d", "yes", true)}, {Answer("d", "yes, no", false)});
  ASSERT_EQ(agreement.differences.size(), 1u);
  EXPECT_EQ(agreement.differences[0].position, 3);
  EXPECT_EQ(agreement.differences[0].continuation, "");
  EXPECT_EQ(agreement.differences[0].reference_continuation, ", no");
}

TEST_F(AgreementTest, LongListsAreCutUnlessAllIsAskedFor) {
  std::vector<PebbleAnswer> ours, references;
  for (int idx = 0; idx < 30; ++idx) {
    ours.push_back(Answer(fmt::format("item-{}", idx), "here", true));
    references.push_back(Answer(fmt::format("item-{}", idx), "there", true));
  }
  const Agreement agreement = CompareAnswers(tokenizer_, ours, references);
  EXPECT_THAT(agreement.ToText("FILE", false), HasSubstr("and 10 more"));
  EXPECT_THAT(agreement.ToText("FILE", false), Not(HasSubstr("item-25")));
  EXPECT_THAT(agreement.ToText("FILE", true), HasSubstr("item-29"));
}

}  // namespace
}  // namespace lapidary
