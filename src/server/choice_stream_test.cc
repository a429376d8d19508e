#include "server/choice_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/random_id.h"
#include "text/tokenizer.h"

namespace lapidary {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kCall[] = "<|tool_call>call:add{a:2,b:<|\"|>x<|\"|>}<tool_call|>";

class ChoiceStreamTest : public testing::Test {
 protected:
  struct Outcome {
    ChoiceDelta whole;
    bool stopped_early = false;
    int num_calls = 0;
    std::string matched_stop;
  };

  // Streams the tokens of `text`, special ones included.
  Outcome Run(std::string_view text) const {
    Outcome outcome;
    ChoiceStream stream = Open(single_call_);
    for (const int32_t id : tokenizer_.Encode(text, SpecialTokens::kParse)) {
      if ((outcome.stopped_early = Push(stream, id, &outcome.whole))) break;
    }
    Finish(stream, &outcome.whole);
    outcome.num_calls = stream.num_tool_calls();
    if (stream.matched_stop() != nullptr) outcome.matched_stop = *stream.matched_stop();
    return outcome;
  }

  ChoiceStream Open(bool single_call) const {
    AnswerReaderOptions reader;
    reader.skip_special = request_.skip_special;
    reader.stop = request_.stop;
    reader.single_call = single_call;
    if (is_chat_) reader.parser.emplace().stream_arguments = request_.stream;
    return {tokenizer_, std::move(reader), request_};
  }
  // Whether the choice is complete.
  static bool Push(ChoiceStream& stream, int32_t id, ChoiceDelta* delta) {
    RequestEvent event;
    event.tokens.push_back({.id = id});
    return stream.Read(event, delta).end.has_value();
  }
  static void Finish(ChoiceStream& stream, ChoiceDelta* delta) {
    RequestEvent event;
    event.finish = FinishReason::kLength;
    stream.Read(event, delta);
  }

  const Tokenizer tokenizer_ =
      Tokenizer::Load(LAPIDARY_SOURCE_DIR "/tests/data/tokenizer/tokenizer-mini.json").value();
  GenerationRequest request_;
  bool is_chat_ = true;
  bool single_call_ = false;
};

TEST_F(ChoiceStreamTest, ThoughtsAreApartFromContent) {
  const Outcome outcome = Run("<|channel>thought\nHm.\n<channel|>Hello world");
  EXPECT_EQ(outcome.whole.reasoning, "Hm.");
  EXPECT_EQ(outcome.whole.content, "Hello world");
  EXPECT_THAT(outcome.whole.tool_calls, IsEmpty());
}

TEST_F(ChoiceStreamTest, CallsHaveIdNameAndArguments) {
  const Outcome outcome = Run(std::string("Hello") + kCall + kCall);
  ASSERT_EQ(outcome.whole.tool_calls.size(), 2);
  const ChoiceDelta::ToolCall& first = outcome.whole.tool_calls[0];
  EXPECT_EQ(first.index, 0);
  EXPECT_EQ(first.name, "add");
  EXPECT_EQ(first.arguments, R"({"a":2,"b":"x"})");
  EXPECT_TRUE(first.id.starts_with("call_"));
  EXPECT_EQ(outcome.whole.tool_calls[1].index, 1);
  EXPECT_NE(outcome.whole.tool_calls[1].id, first.id);
  EXPECT_EQ(outcome.whole.content, "Hello");
  EXPECT_FALSE(outcome.stopped_early);
}

TEST_F(ChoiceStreamTest, StreamedCallsGrowWithTheirTokens) {
  request_.stream = true;
  ChoiceStream stream = Open(single_call_);
  std::vector<ChoiceDelta::ToolCall> parts;
  for (const int32_t id : tokenizer_.Encode(std::string(kCall) + kCall, SpecialTokens::kParse)) {
    ChoiceDelta delta;
    EXPECT_FALSE(Push(stream, id, &delta));
    parts.insert(parts.end(), delta.tool_calls.begin(), delta.tool_calls.end());
  }
  ASSERT_GT(parts.size(), 6u);
  std::vector<std::string> arguments(2);
  for (size_t idx = 0; idx < parts.size(); ++idx) {
    const bool begins = idx == 0 || parts[idx].index != parts[idx - 1].index;
    EXPECT_EQ(parts[idx].is_begin(), begins);
    EXPECT_EQ(parts[idx].name, begins ? "add" : "");
    arguments[parts[idx].index] += parts[idx].arguments;
  }
  EXPECT_THAT(arguments, ElementsAre(R"({"a":2,"b":"x"})", R"({"a":2,"b":"x"})"));
  EXPECT_EQ(stream.num_tool_calls(), 2);
}

TEST_F(ChoiceStreamTest, BrokenCallIsContentAndNoCall) {
  const Outcome outcome = Run("<|tool_call>call:add{a:<tool_call|>");
  EXPECT_EQ(outcome.whole.content, "call:add{a:");
  EXPECT_THAT(outcome.whole.tool_calls, IsEmpty());
  EXPECT_EQ(outcome.num_calls, 0);
}

TEST_F(ChoiceStreamTest, CallsBehindBrokenOnesCountFromZero) {
  const Outcome outcome = Run(std::string("<|tool_call>call:add{a:<tool_call|>") + kCall);
  ASSERT_EQ(outcome.whole.tool_calls.size(), 1);
  EXPECT_EQ(outcome.whole.tool_calls[0].index, 0);
}

TEST_F(ChoiceStreamTest, SingleCallEndsTheChoice) {
  single_call_ = true;
  const Outcome outcome = Run(std::string(kCall) + kCall + "Hello");
  EXPECT_TRUE(outcome.stopped_early);
  EXPECT_EQ(outcome.whole.tool_calls.size(), 1);
  EXPECT_EQ(outcome.whole.content, "");
}

TEST_F(ChoiceStreamTest, StopStringsCutContentAndNotThoughts) {
  request_.stop = {"never", "wor"};
  const Outcome outcome = Run("<|channel>thought\nworld\n<channel|>Hello world");
  EXPECT_EQ(outcome.whole.reasoning, "world");
  EXPECT_EQ(outcome.whole.content, "Hello ");
  EXPECT_TRUE(outcome.stopped_early);
  EXPECT_EQ(outcome.matched_stop, "wor");
}

TEST_F(ChoiceStreamTest, HalfAStopStringIsReleasedAtTheEnd) {
  request_.stop = {"world!"};
  const Outcome outcome = Run("Hello world");
  EXPECT_EQ(outcome.whole.content, "Hello world");
  EXPECT_FALSE(outcome.stopped_early);
  EXPECT_EQ(outcome.matched_stop, "");
}

TEST_F(ChoiceStreamTest, TextCompletionsKnowNoGrammar) {
  is_chat_ = false;
  request_.skip_special = false;
  EXPECT_EQ(Run(kCall).whole.content, kCall);
  EXPECT_EQ(Run("<|channel>thought\nHm").whole.content, "<|channel>thought\nHm");
}

TEST_F(ChoiceStreamTest, LogprobsCoverEveryTokenAndCountCharacters) {
  is_chat_ = false;
  request_.sampling.num_logprobs = 0;
  const ChoiceDelta whole = Run("Hello world").whole;
  std::vector<size_t> offsets;
  for (const auto& logprob : whole.logprobs) offsets.push_back(logprob.text_offset);
  EXPECT_THAT(offsets, ElementsAre(0, 5));
}

// Evaluation harnesses drop the last logprob of a text completion: it must be the stop token's.
TEST_F(ChoiceStreamTest, TheTokenThatStopsATextHasALogprobAndNoText) {
  request_.sampling.num_logprobs = 0;
  request_.return_token_ids = true;
  for (const bool is_chat : {false, true}) {
    is_chat_ = is_chat;
    ChoiceStream stream = Open(single_call_);
    RequestEvent event;
    for (const int32_t id : tokenizer_.Encode("Hello world", SpecialTokens::kParse)) {
      event.tokens.push_back({.id = id});
    }
    event.finish = FinishReason::kStop;
    ChoiceDelta delta;
    const ChoiceStream::News news = stream.Read(event, &delta);
    EXPECT_EQ(delta.content, "Hello");
    EXPECT_EQ(delta.token_ids.size(), 2u);
    EXPECT_EQ(delta.logprobs.size(), is_chat ? 1u : 2u);
    EXPECT_EQ(news.num_tokens, 2u);
    ASSERT_TRUE(news.end.has_value());
    EXPECT_EQ(news.end->reason, AnswerEnd::Reason::kStop);
  }
}

TEST(RandomIdTest, IdsDiffer) {
  EXPECT_EQ(RandomId("call_").size(), 5 + 24);
  EXPECT_NE(RandomId("x"), RandomId("x"));
}

// What comes behind the first tokens, whatever their number, is the end of what all of them show.
TEST_F(ChoiceStreamTest, TokensThatWereReadBeforeShowNothingAndChangeNothing) {
  const std::string text =
      std::string("<|channel>thought\nHm, h\u00e9.\n<channel|>Hello \u00e9 world. Hel") + kCall +
      kCall;
  request_.stop = {"world.X", "Hello!"};
  for (const bool is_streamed : {false, true}) {
    request_.stream = is_streamed;
    const std::vector<int32_t> ids = tokenizer_.Encode(text, SpecialTokens::kParse);
    const Outcome whole = Run(text);
    for (size_t num_read = 0; num_read <= ids.size(); ++num_read) {
      ChoiceStream stream = Open(single_call_);
      std::optional<ChoiceDelta::ToolCall> open_call;
      const auto read = std::span(ids).first(num_read);
      ASSERT_EQ(stream.Replay(read, &open_call), std::nullopt);
      ChoiceDelta rest;
      if (open_call && !is_streamed) rest.tool_calls.push_back(*open_call);
      for (size_t idx = num_read; idx < ids.size(); ++idx) {
        EXPECT_FALSE(Push(stream, ids[idx], &rest));
      }
      Finish(stream, &rest);
      EXPECT_TRUE(whole.whole.content.ends_with(rest.content)) << rest.content;
      EXPECT_TRUE(whole.whole.reasoning.ends_with(rest.reasoning)) << rest.reasoning;
      EXPECT_EQ(stream.num_tool_calls(), 2);
      for (const ChoiceDelta::ToolCall& call : rest.tool_calls) {
        const std::string& arguments = whole.whole.tool_calls[call.index].arguments;
        if (call.is_begin()) {
          EXPECT_EQ(call.arguments, arguments);
        } else {
          EXPECT_TRUE(is_streamed);
          EXPECT_TRUE(arguments.ends_with(call.arguments)) << call.arguments;
          EXPECT_TRUE(open_call && open_call->name == "add");
        }
      }
    }
  }
}

TEST_F(ChoiceStreamTest, TokensThatEndTheAnswerAreNotGoneOnFrom) {
  std::optional<ChoiceDelta::ToolCall> open_call;
  request_.stop = {"world"};
  const auto ids = tokenizer_.Encode("Hello world. Hello", SpecialTokens::kParse);
  ChoiceStream stopped = Open(single_call_);
  const auto end = stopped.Replay(ids, &open_call);
  ASSERT_TRUE(end.has_value());
  EXPECT_LT(*end, ids.size() - 1);
  EXPECT_EQ(*stopped.matched_stop(), "world");
  ChoiceStream called = Open(/*single_call=*/true);
  const auto call = tokenizer_.Encode(kCall, SpecialTokens::kParse);
  EXPECT_TRUE(called.Replay(call, &open_call).has_value());
}

// As a broken call of a whole answer that began before the cut.
TEST_F(ChoiceStreamTest, ACallThatWasOpenMayTurnOutToBeNone) {
  const Outcome whole = Run("<|tool_call>call:add{a:[2}<tool_call|>x");
  const auto broken =
      tokenizer_.Encode("<|tool_call>call:add{a:[2}<tool_call|>x", SpecialTokens::kParse);
  for (size_t num_read = 0; num_read < broken.size(); ++num_read) {
    ChoiceStream stream = Open(single_call_);
    std::optional<ChoiceDelta::ToolCall> open_call;
    ASSERT_EQ(stream.Replay(std::span(broken).first(num_read), &open_call), std::nullopt);
    ChoiceDelta rest;
    if (open_call) rest.tool_calls.push_back(*open_call);
    for (size_t idx = num_read; idx < broken.size(); ++idx) {
      EXPECT_FALSE(Push(stream, broken[idx], &rest));
    }
    Finish(stream, &rest);
    EXPECT_THAT(rest.tool_calls, IsEmpty());
    EXPECT_TRUE(whole.whole.content.ends_with(rest.content));
  }
}

}  // namespace
}  // namespace lapidary
