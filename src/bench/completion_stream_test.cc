#include "bench/completion_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lapidary::bench {
namespace {

using testing::DoubleEq;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;

struct Event {
  double at;
  std::string data;
};

Result<RequestRecord> Read(const std::vector<Event>& events) {
  CompletionStream stream;
  for (const Event& event : events) RETURN_IF_ERROR(stream.OnEvent(event.data, event.at));
  RequestRecord record;
  record.prompt_tokens = 100;  // what was sent
  RETURN_IF_ERROR(stream.Finish(&record));
  return record;
}

std::string Chunk(const std::string& text, const std::string& rest = "") {
  return R"({"choices":[{"index":0,"text":")" + text + R"(","finish_reason":null}])" + rest + "}";
}
std::string Delta(const std::string& delta, const std::string& finish = "null") {
  return R"({"choices":[{"index":0,"delta":)" + delta + R"(,"finish_reason":)" + finish + "}]}";
}
std::string UsageOf(int prompt_tokens, int output_tokens) {
  return R"("usage":{"prompt_tokens":)" + std::to_string(prompt_tokens) +
         R"(,"completion_tokens":)" + std::to_string(output_tokens) + "}";
}
std::string UsageChunk(int prompt_tokens, int output_tokens) {
  return R"({"choices":[],)" + UsageOf(prompt_tokens, output_tokens) + "}";
}

TEST(CompletionStream, OneTokenInEveryChunk) {
  const auto record = Read({{1.0, Chunk("a")},
                            {1.5, Chunk("b")},
                            {2.5, R"({"choices":[{"text":"c","finish_reason":"length"}]})"},
                            {2.6, UsageChunk(7, 3)},
                            {2.6, "[DONE]"}});
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->ttft, 1.0);
  EXPECT_EQ(record->latency, 2.5);  // not when the usage came
  EXPECT_THAT(record->itls, ElementsAre(0.5, 1.0));
  EXPECT_EQ(record->output_tokens, 3);
  EXPECT_EQ(record->prompt_tokens, 7);
  EXPECT_EQ(record->text, "abc");
}

// llama.cpp's shape: the end has a choice with no text and the usage.
TEST(CompletionStream, AnEndThatBringsNoTokenIsNotCounted) {
  const std::string end =
      R"({"choices":[{"text":"","finish_reason":"length"}],)" + UsageOf(7, 2) + "}";
  const auto record = Read({{1.0, Chunk("a")}, {1.5, Chunk("b")}, {1.6, end}, {1.6, "[DONE]"}});
  ASSERT_TRUE(record.ok());
  EXPECT_THAT(record->itls, ElementsAre(0.5));
  EXPECT_EQ(record->output_tokens, 2);
  EXPECT_EQ(record->latency, 1.6);
}

TEST(CompletionStream, AStopTokenWithoutTextIsATokenOfItsOwn) {
  const std::string end = R"({"choices":[{"text":"","finish_reason":"stop"}]})";
  auto record = Read({{1.0, Chunk("a")}, {1.5, end}, {1.5, UsageChunk(7, 2)}, {1.5, "[DONE]"}});
  ASSERT_TRUE(record.ok());
  EXPECT_THAT(record->itls, ElementsAre(0.5));
  // The same, when it is the only one.
  record = Read({{1.5, end}, {1.5, UsageChunk(7, 1)}, {1.5, "[DONE]"}});
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->ttft, 1.5);
  EXPECT_EQ(record->output_tokens, 1);
  EXPECT_TRUE(record->itls.empty());
}

TEST(CompletionStream, TotalsAreTheServersWhenChunksHoldSeveralTokens) {
  const auto record = Read({{1.0, Chunk("a")},
                            {2.0, Chunk("bcd")},
                            {3.0, Chunk("e")},
                            {3.0, UsageChunk(7, 5)},
                            {3.0, "[DONE]"}});
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->output_tokens, 5);
  EXPECT_EQ(record->latency - record->ttft, 2.0);  // 0.5 s a token
}

TEST(CompletionStream, GapsAreSplitWhereEveryChunkCounts) {
  const auto counted = [](const std::string& text, int total) {
    return Chunk(text, "," + UsageOf(7, total));
  };
  const auto record = Read({{1.0, counted("a", 1)},
                            {1.6, counted("bcd", 4)},
                            {1.7, counted("d", 4)},  // text of a token counted before
                            {2.0, counted("e", 5)},
                            {2.0, "[DONE]"}});
  ASSERT_TRUE(record.ok());
  EXPECT_THAT(record->itls, ElementsAre(DoubleNear(0.2, 1e-9), DoubleNear(0.2, 1e-9),
                                        DoubleNear(0.2, 1e-9), DoubleNear(0.4, 1e-9)));
  EXPECT_EQ(record->output_tokens, 5);
}

TEST(CompletionStream, TheRoleIsNoToken) {
  const auto record = Read({{0.1, Delta(R"({"role":"assistant","content":""})")},
                            {1.0, Delta(R"({"reasoning":"x","reasoning_content":"x"})")},
                            {1.5, Delta(R"({"content":"y"})")},
                            {1.5, Delta("{}", "\"stop\"")},
                            {1.5, UsageChunk(7, 2)},
                            {1.5, "[DONE]"}});
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->ttft, 1.0);
  EXPECT_EQ(record->text, "xy");
  EXPECT_THAT(record->itls, ElementsAre(DoubleEq(0.5)));
}

TEST(CompletionStream, WithoutAUsageChunksAreCounted) {
  const auto record = Read({{1.0, Chunk("a")}, {1.5, Chunk("")}, {2.0, "[DONE]"}});
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->output_tokens, 2);
  EXPECT_EQ(record->prompt_tokens, 100);
}

TEST(CompletionStream, BrokenCharactersAreTokensToo) {
  const auto record =
      Read({{1.0, Chunk("a")}, {1.5, Chunk("\xf0\x9f")}, {1.5, UsageChunk(7, 2)}, {1.5, "[DONE]"}});
  ASSERT_TRUE(record.ok()) << record.error().message;
  EXPECT_EQ(record->text, "a??");
  EXPECT_THAT(record->itls, ElementsAre(0.5));
}

TEST(CompletionStream, FailuresSayWhy) {
  EXPECT_THAT(Read({{1.0, Chunk("a")}}).error().message, HasSubstr("before the answer"));
  EXPECT_THAT(Read({{1.0, "[DONE]"}}).error().message, HasSubstr("no token"));
  EXPECT_THAT(
      Read({{1.0, R"({"error":{"message":"the device is gone","code":500}})"}}).error().message,
      HasSubstr("the device is gone"));
  EXPECT_FALSE(Read({{1.0, "hello"}}).ok());
  EXPECT_THAT(Read({{1.0, R"({"choices":7})"}, {1.0, "[DONE]"}}).error().message,
              HasSubstr("no token"));
}

TEST(ErrorMessage, IsFoundInAllShapes) {
  EXPECT_EQ(ErrorMessage(R"({"error":{"message":"full"}})"), "full");
  EXPECT_EQ(ErrorMessage(R"({"error":"full"})"), "full");
  EXPECT_EQ(ErrorMessage(R"({"message":"full"})"), "full");
  EXPECT_EQ(ErrorMessage("<html>"), "<html>");
}

}  // namespace
}  // namespace lapidary::bench
