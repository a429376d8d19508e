#include "request/prepare_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lapidary {
namespace {

using grammar::Constraint;
using testing::HasSubstr;

constexpr int32_t kContext = 100;

class PrepareRequestTest : public testing::Test {
 protected:
  // What is wrong with it; empty: nothing.
  std::string Prepare(const ChatRules* chat, std::vector<size_t> prompt_lens = {10},
                      FieldStyle style = FieldStyle::kQuoted) {
    prepared_ = {};
    std::vector<PreparedPrompt> prompts;
    for (const size_t length : prompt_lens) {
      prompts.emplace_back().text.ids.assign(length, 2);
      prompts.back().text.starts_in_thought = starts_in_thought_;
    }
    const auto bad = PrepareRequest(
        {.text = text_, .vocab_size = 512, .max_model_len = kContext, .style = style}, asked_, chat,
        std::move(prompts), &prepared_);
    field_ = bad ? bad->field : "";
    return bad ? bad->message : "";
  }

  const TextModel text_ = TextModel::Load(LAPIDARY_SOURCE_DIR "/models/pebble-e").value();
  AnswerRequest asked_;
  bool starts_in_thought_ = false;
  PreparedRequest prepared_;
  std::string field_;
};

ChatRules WithTool(bool must_call = false) {
  ChatRules rules;
  rules.calls.tools.push_back({.name = "add"});
  rules.calls.must_call = must_call;
  return rules;
}

TEST_F(PrepareRequestTest, AnAnswerHasTheRestOfTheContextUnlessItAsksForLess) {
  EXPECT_EQ(Prepare(nullptr, {10, 30}), "");
  ASSERT_EQ(prepared_.requests.size(), 2u);
  EXPECT_EQ(prepared_.requests[0].max_new_tokens, 90);
  EXPECT_EQ(prepared_.requests[1].max_new_tokens, 70);
  asked_.max_tokens = 5;
  EXPECT_EQ(Prepare(nullptr), "");
  EXPECT_EQ(prepared_.requests[0].max_new_tokens, 5);
}

TEST_F(PrepareRequestTest, MoreThanTheContextLeavesIsRefusedOrClamped) {
  asked_.max_tokens = 91;
  EXPECT_EQ(Prepare(nullptr),
            "the context holds 100 tokens; the prompt has 10 and 91 more were asked for");
  asked_.clamps_max_tokens = true;
  EXPECT_EQ(Prepare(nullptr), "");
  EXPECT_EQ(prepared_.requests[0].max_new_tokens, 90);
}

TEST_F(PrepareRequestTest, AThoughtMayComeBeforeAFormOnlyWhereThinkingIsOn) {
  using Thought = Constraint::Thought;
  asked_.constraint = Constraint{.kind = Constraint::Kind::kJsonObject};
  ChatRules rules;
  EXPECT_EQ(Prepare(&rules), "");
  EXPECT_EQ(prepared_.form->thought, Thought::kNone);
  EXPECT_TRUE(prepared_.reader.parser->accept_bare_thought);
  rules.thinks = true;
  EXPECT_EQ(Prepare(&rules), "");
  EXPECT_EQ(prepared_.form->thought, Thought::kMayOpen);
  starts_in_thought_ = true;
  EXPECT_EQ(Prepare(&rules), "");
  EXPECT_EQ(prepared_.form->thought, Thought::kIsOpen);
  EXPECT_TRUE(prepared_.reader.parser->starts_in_thought);
}

TEST_F(PrepareRequestTest, ToolsMayBeCalledInPlaceOfAFormThatTakesCalls) {
  const ChatRules rules = WithTool();
  EXPECT_EQ(Prepare(&rules), "");
  EXPECT_FALSE(prepared_.form.has_value());  // Calls of tools that are not strict are free.
  asked_.constraint = Constraint{.kind = Constraint::Kind::kJsonObject};
  asked_.constraint_field = "response_format";
  EXPECT_EQ(Prepare(&rules), "");
  EXPECT_TRUE(prepared_.form->tools.empty());
  asked_.constraint_takes_calls = true;
  EXPECT_EQ(Prepare(&rules), "");
  EXPECT_EQ(prepared_.form->kind, Constraint::Kind::kJsonObject);
  EXPECT_EQ(prepared_.form->tools.size(), 1u);
  EXPECT_EQ(prepared_.form_field, "response_format");
}

TEST_F(PrepareRequestTest, ACallThatIsDemandedGoesBeforeAnotherForm) {
  asked_.constraint = Constraint{.kind = Constraint::Kind::kJsonObject};
  const ChatRules rules = WithTool(/*must_call=*/true);
  EXPECT_EQ(Prepare(&rules), "");
  EXPECT_EQ(prepared_.form->kind, Constraint::Kind::kToolCalls);
  EXPECT_EQ(prepared_.form_field, "tools");
}

TEST_F(PrepareRequestTest, ABudgetOfThoughtsIsAFormOfItsOwnAndNeedsAChat) {
  asked_.thinking_token_budget = 7;
  EXPECT_THAT(Prepare(nullptr), HasSubstr("'thinking_token_budget' needs a conversation"));
  const ChatRules rules;
  EXPECT_EQ(Prepare(&rules), "");
  EXPECT_EQ(prepared_.form->kind, Constraint::Kind::kAnything);
  EXPECT_EQ(prepared_.form->max_thought_tokens, 7);
  asked_.ignore_eos = true;  // It is no form of the text, which may go on.
  EXPECT_EQ(Prepare(&rules), "");
}

TEST_F(PrepareRequestTest, ErrorsNameTheFieldAsTheCallerSpellsIt) {
  asked_.min_tokens = 9;
  asked_.max_tokens = 3;
  EXPECT_EQ(Prepare(nullptr), "'min_tokens' is 9, more than the 3 of 'max_tokens'");
  EXPECT_EQ(field_, "min_tokens");
  EXPECT_EQ(Prepare(nullptr, {10}, FieldStyle::kFlag),
            "--min-tokens is 9, more than the 3 of --max-tokens");
  asked_ = {};
  asked_.ignore_eos = true;
  asked_.constraint = Constraint{.kind = Constraint::Kind::kRegex, .text = "a"};
  EXPECT_EQ(Prepare(nullptr), "'ignore_eos' and a form of the answer exclude each other");
  asked_ = {};
  asked_.sampling.top_p = 3.0f;
  EXPECT_THAT(Prepare(nullptr), HasSubstr("top_p"));
  EXPECT_EQ(field_, "top_p");
  asked_ = {};
  asked_.stop = {""};
  Prepare(nullptr);
  EXPECT_EQ(field_, "stop");
}

}  // namespace
}  // namespace lapidary
