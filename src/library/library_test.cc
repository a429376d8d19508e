// The interface as a program uses it, on a bundled model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "lapidary/session.h"

namespace {

using lapidary::Finish;
using lapidary::Request;
using lapidary::Session;
using lapidary::Stream;
using lapidary::Update;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kSum = R"({"messages": [{"role": "user", "content": "What is 48 + 17?"}]})";

Session& Pebble() {
  static Session session(LAPIDARY_SOURCE_DIR "/models/pebble-e",
                         {.device = "cpu", .num_threads = 2});
  return session;
}

Request Greedy(lapidary::Prompt prompt) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.0f;
  return request;
}

Request Endless() {
  Request request = Greedy(Pebble().EncodePrompt("Once upon a time"));
  request.ignore_eos = true;
  return request;
}

template <typename E, typename F>
std::string MessageOf(F call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

TEST(Library, AnswersRequestsInTheirOrder) {
  Request other = Greedy(
      Pebble().EncodeChat(R"({"messages": [{"role": "user", "content": "What is 2 + 2?"}]})"));
  const auto outputs = Pebble().Generate({Greedy(Pebble().EncodeChat(kSum)), other});
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0].answers[0].text, "48 + 17 = 65");
  EXPECT_EQ(outputs[0].answers[0].finish, Finish::kStop);
  EXPECT_EQ(outputs[1].answers[0].text, "2 + 2 = 4");
}

TEST(Library, PartsOfAStreamJoinedAreTheWhole) {
  Request request = Endless();
  request.max_tokens = 40;
  request.num_answers = 3;
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 5;
  const auto whole = Pebble().Generate({request})[0].answers;
  Stream stream = Pebble().Open();
  stream.Add(request);
  std::vector<std::string> texts(3);
  std::vector<size_t> num_tokens(3);
  size_t num_last = 0;
  while (stream.num_open() > 0) {
    pollfd ready{.fd = stream.ready_fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&ready, 1, 60'000), 1);
    for (const Update& update : stream.Take(std::chrono::milliseconds(0))) {
      texts[static_cast<size_t>(update.answer_index)] += update.news.text;
      num_tokens[static_cast<size_t>(update.answer_index)] += update.news.tokens.size();
      num_last += update.is_last ? 1 : 0;
    }
  }
  EXPECT_EQ(num_last, 1u);
  EXPECT_THAT(num_tokens, ElementsAre(40, 40, 40));
  EXPECT_THAT(texts, ElementsAre(whole[0].text, whole[1].text, whole[2].text));
  EXPECT_NE(texts[0], texts[1]);
}

TEST(Library, EndsAtAStopStringAndSaysWhich) {
  Request request = Greedy(Pebble().EncodeChat(kSum));
  request.stop = {"nowhere", " ="};
  const auto answer = Pebble().Generate({request})[0].answers[0];
  EXPECT_EQ(answer.text, "48 + 17");
  EXPECT_EQ(answer.finish, Finish::kStop);
  EXPECT_EQ(answer.stop_string, " =");
  request.include_stop = true;
  EXPECT_EQ(Pebble().Generate({request})[0].answers[0].text, "48 + 17 =");
}

TEST(Library, GivesLogprobsOfAnswerAndPrompt) {
  Request request = Greedy(Pebble().EncodeChat(kSum));
  request.max_tokens = 2;
  request.num_logprobs = 3;
  request.num_prompt_logprobs = 0;
  const auto output = Pebble().Generate({request})[0];
  EXPECT_EQ(output.prompt_logprobs.size() + 1, request.prompt.ids.size());
  ASSERT_EQ(output.answers[0].tokens.size(), 2u);
  for (const lapidary::Token& token : output.answers[0].tokens) {
    ASSERT_EQ(token.top.size(), 3u);
    EXPECT_EQ(token.top[0].id, token.id);
    EXPECT_FLOAT_EQ(token.top[0].logprob, token.logprob);
  }
}

TEST(Library, KeepsToAConstraint) {
  Request request = Greedy(Pebble().EncodeChat(kSum));
  request.constraint = lapidary::Constraint{.kind = lapidary::Constraint::Kind::kChoice,
                                            .choices = {"rain", "snow"}};
  EXPECT_THAT(Pebble().Generate({request})[0].answers[0].text, testing::AnyOf("rain", "snow"));
}

TEST(Library, AFormIsNotPutOffByAThoughtThatNobodyAskedFor) {
  Request request = Greedy(Pebble().EncodeChat(kSum));
  request.constraint = lapidary::Constraint{.kind = lapidary::Constraint::Kind::kChoice,
                                            .choices = {"rain", "snow"}};
  request.sampling.logit_bias = {{Pebble().Encode("<|channel>", false)[0], 100.0f}};
  request.max_tokens = 40;
  const lapidary::Answer answer = Pebble().Generate({request})[0].answers[0];
  EXPECT_THAT(answer.text, testing::AnyOf("rain", "snow"));
  EXPECT_EQ(answer.reasoning, "");
}

TEST(Library, ToolsMayBeCalledInPlaceOfAForm) {
  Request request = Greedy(Pebble().EncodeChat(R"({
    "messages": [{"role": "user", "content": "What is 48 + 17?"}],
    "parallel_tool_calls": false,
    "tools": [{"type": "function", "function": {"name": "add", "strict": true, "parameters": {
      "type": "object", "properties": {"a": {"enum": [48]}}, "required": ["a"]}}}]})"));
  request.constraint = lapidary::Constraint{
      .kind = lapidary::Constraint::Kind::kJsonSchema,
      .text = R"({"type": "object", "properties": {"sum": {"enum": [65]}}, "required": ["sum"]})"};
  const int32_t call = Pebble().Encode("<|tool_call>", false)[0];
  request.sampling.logit_bias = {{call, 100.0f}};
  lapidary::Answer answer = Pebble().Generate({request})[0].answers[0];
  ASSERT_EQ(answer.tool_calls.size(), 1u);
  EXPECT_EQ(answer.tool_calls[0].name, "add");
  EXPECT_EQ(answer.tool_calls[0].arguments, R"({"a":48})");
  EXPECT_EQ(answer.finish, Finish::kToolCalls);
  request.sampling.logit_bias = {{call, -100.0f}};
  answer = Pebble().Generate({request})[0].answers[0];
  EXPECT_THAT(answer.tool_calls, testing::IsEmpty());
  EXPECT_THAT(answer.text, testing::AllOf(HasSubstr("\"sum\""), HasSubstr("65")));
  // A call that is demanded takes precedence over the form.
  request.prompt = Pebble().EncodeChat(R"({
    "messages": [{"role": "user", "content": "What is 48 + 17?"}], "tool_choice": "required",
    "tools": [{"type": "function", "function": {"name": "add"}}]})");
  request.sampling.logit_bias = {};
  EXPECT_EQ(Pebble().Generate({request})[0].answers[0].tool_calls.at(0).name, "add");
}

TEST(Library, OptionsOfTheCommandLineAreTakenByName) {
  EXPECT_THAT(lapidary::OptionNames(),
              testing::IsSupersetOf({"quantization", "fast_math", "numa"}));
  const auto refusal = [](const char* name, const char* value) {
    return MessageOf<lapidary::InvalidInput>([&] {
      Session("tiny-e", {.device = "cpu", .dummy_weights = true, .more = {{name, value}}});
    });
  };
  EXPECT_THAT(refusal("quantization", "q9"), HasSubstr("must be one of q8_0"));
  EXPECT_THAT(refusal("no_such_option", "1"), HasSubstr("no option no_such_option"));
  EXPECT_EQ(refusal("quantization", "q8_0"), "");
}

TEST(Library, StopsWhenTheCallerHasEnoughAndGoesOnLater) {
  const auto outputs = Pebble().Generate({Endless(), Endless()}, [](size_t) { return false; });
  EXPECT_EQ(outputs[0].answers[0].finish, Finish::kAborted);
  EXPECT_EQ(outputs[1].answers[0].finish, Finish::kAborted);
  EXPECT_EQ(Pebble().Generate({Greedy(Pebble().EncodeChat(kSum))})[0].answers[0].text,
            "48 + 17 = 65");
}

TEST(Library, LogitsBetweenRequestsDisturbNothing) {
  const auto prompt = Pebble().EncodeChat(kSum);
  Request long_one = Endless();
  long_one.max_tokens = 60;
  const auto alone = Pebble().Generate({long_one});
  std::vector<lapidary::Output> beside;
  std::thread other([&] { beside = Pebble().Generate({long_one}); });
  const std::vector<float> logits = Pebble().Logits(prompt.ids);
  other.join();
  const auto vocab_size = static_cast<size_t>(Pebble().vocab_size());
  ASSERT_EQ(logits.size(), prompt.ids.size() * vocab_size);
  const auto last = logits.end() - static_cast<std::ptrdiff_t>(vocab_size);
  const auto answer = Pebble().Generate({Greedy(prompt)})[0].answers[0];
  EXPECT_EQ(std::max_element(last, logits.end()) - last, answer.tokens[0].id);
  EXPECT_EQ(beside[0].answers[0].text, alone[0].answers[0].text);
}

TEST(Library, RefusesWhatCannotRunWithASentence) {
  const auto refusal = [](const Request& request) {
    return MessageOf<lapidary::InvalidInput>([&] { Pebble().Generate({request}); });
  };
  Request request = Greedy({.ids = {2}});
  request.max_tokens = 1 << 28;
  EXPECT_THAT(refusal(request), HasSubstr("the context holds"));
  EXPECT_THAT(refusal(Greedy({.ids = {-1}})), HasSubstr("outside the vocabulary"));
  EXPECT_THAT(refusal(Greedy({.ids = {}})), HasSubstr("empty"));
  request = Greedy({.ids = {2}});
  request.sampling.top_p = 3.0f;
  EXPECT_THAT(refusal(request), HasSubstr("top_p"));
  EXPECT_THAT(MessageOf<lapidary::InvalidInput>([] { Pebble().EncodeChat(R"({"messages": 3})"); }),
              HasSubstr("'messages' must be a list"));
  EXPECT_THAT(MessageOf<lapidary::InvalidInput>([] { Session("/no/such/model"); }),
              HasSubstr("/no/such/model"));
}

TEST(Library, ClosingWakesWhoWaitsAndRefusesTheRest) {
  Session session("tiny-e", {.device = "cpu", .num_threads = 1, .dummy_weights = true});
  Stream stream = session.Open();
  std::string message;
  std::thread reader([&] { message = MessageOf<lapidary::Error>([&] { stream.Take(); }); });
  session.Close();
  reader.join();
  EXPECT_EQ(message, "the session is closed");
  EXPECT_EQ(MessageOf<lapidary::Error>([&] { session.Open(); }), "the session is closed");
}

TEST(Library, AForkedChildIsRefusedWithASentence) {
  Stream stream = Pebble().Open();
  stream.Add(Endless());
  const pid_t child = fork();
  if (child == 0) {
    const std::string message = MessageOf<lapidary::Error>([] { Pebble().Open(); });
    { const Stream gone = std::move(stream); }
    _exit(message.find("forked") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
