#include "session/session.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "engine/fake_executor.h"
#include "model/presets.h"

namespace lapidary {
namespace {

constexpr int kMaxModelLen = 200;

std::shared_ptr<const TextModel> NoText() {
  TextModel text = TextModel::None("tiny-e");
  text.defaults.stop_ids = {7, 11};
  return std::make_shared<const TextModel>(std::move(text));
}

class SessionTest : public testing::Test {
 protected:
  SessionTest() : plan_(DescribeModel("tiny-e")->plan) { Open({}); }

  void Open(EngineOptions options) {
    options.limits.max_model_len = kMaxModelLen;
    auto executor =
        std::make_unique<FakeExecutor>(plan_, MakeKvLayout(plan_, KvFormat::kF32, {4, 8}), 400);
    session_ =
        std::make_unique<Session>(std::make_unique<Engine>(std::move(executor), options), NoText());
  }

  static Request Ask(std::vector<int32_t> ids, std::optional<int32_t> max_new_tokens) {
    Request request;
    request.prompt.ids = std::move(ids);
    request.max_new_tokens = max_new_tokens;
    request.ignore_eos = true;
    return request;
  }
  std::vector<int32_t> Continuation(std::span<const int32_t> prompt, int count) const {
    return FakeExecutor::Continuation(prompt, count, plan_.vocab_size);
  }

  // Reads a stream to its end.
  static std::pair<std::vector<int32_t>, RequestEvent> Read(RequestStream& stream) {
    std::vector<int32_t> ids;
    while (true) {
      RequestEvent event = stream.Next();
      for (const SampledToken& token : event.tokens) ids.push_back(token.id);
      if (event.finish) return {ids, std::move(event)};
    }
  }

  const ModelPlan plan_;
  std::unique_ptr<Session> session_;
};

TEST_F(SessionTest, AStreamBringsTheAnswerAndOneEnd) {
  RequestStream stream = session_->Start(Ask({2, 5, 9}, 30)).value();
  const auto [ids, last] = Read(stream);
  EXPECT_EQ(ids, Continuation(std::vector<int32_t>{2, 5, 9}, 30));
  EXPECT_EQ(last.finish, FinishReason::kLength);
  EXPECT_EQ(last.usage.prompt_tokens, 3);
  EXPECT_EQ(last.usage.output_tokens, 30);
}

TEST_F(SessionTest, WithoutALengthAnAnswerMayFillTheContext) {
  RequestStream stream = session_->Start(Ask({2, 5, 9}, std::nullopt)).value();
  EXPECT_EQ(Read(stream).first.size(), kMaxModelLen - 3u);
}

TEST_F(SessionTest, TheCheckpointsStopTokensEndAnAnswerUnlessToldOtherwise) {
  // A prompt whose answer has one of them early, but not first.
  std::vector<int32_t> prompt = {2, 0};
  std::vector<int32_t> answer;
  size_t stop = 0;
  while (stop == 0 || stop >= 100) {
    ++prompt[1];
    ASSERT_LT(prompt[1], plan_.vocab_size);
    answer = Continuation(prompt, 100);
    stop =
        std::find_if(answer.begin(), answer.end(), [](int32_t id) { return id == 7 || id == 11; }) -
        answer.begin();
  }
  Request request = Ask(prompt, 100);
  RequestStream ignoring = session_->Start(request).value();
  EXPECT_EQ(Read(ignoring).first, answer);
  request.ignore_eos = false;
  RequestStream stopping = session_->Start(request).value();
  const auto [ids, last] = Read(stopping);
  EXPECT_EQ(ids, std::vector<int32_t>(answer.begin(), answer.begin() + stop + 1));
  EXPECT_EQ(last.finish, FinishReason::kStop);
  request.stop_ids = {answer[0]};  // one more
  RequestStream at_once = session_->Start(request).value();
  EXPECT_EQ(Read(at_once).first.size(), 1u);
}

TEST_F(SessionTest, WhatCanNeverRunIsRefused) {
  EXPECT_FALSE(session_->Start(Ask({}, 5)).ok());
  EXPECT_FALSE(session_->Start(Ask({1, 2}, kMaxModelLen)).ok());
  EXPECT_FALSE(session_->Start(Ask(std::vector<int32_t>(kMaxModelLen, 1), std::nullopt)).ok());
  EXPECT_FALSE(session_->Submit(Ask({-1}, 5), [](RequestEvent) { FAIL(); }).ok());
}

TEST_F(SessionTest, CallbacksComeInOrderAndEndOnce) {
  std::vector<int32_t> ids;
  std::promise<FinishReason> ended;
  auto handle = session_->Submit(Ask({3, 4}, 20), [&](RequestEvent event) {
    for (const SampledToken& token : event.tokens) ids.push_back(token.id);
    if (event.finish) ended.set_value(*event.finish);
  });
  ASSERT_TRUE(handle.ok());
  EXPECT_EQ(ended.get_future().get(), FinishReason::kLength);
  EXPECT_EQ(ids, Continuation(std::vector<int32_t>{3, 4}, 20));
}

TEST_F(SessionTest, AHandleThatGoesEndsItsRequest) {
  std::promise<void> begun;
  std::promise<FinishReason> ended;
  std::atomic<bool> has_begun = false;
  {
    auto handle = session_->Submit(Ask({3, 4}, kMaxModelLen - 2), [&](RequestEvent event) {
      if (!has_begun.exchange(true)) begun.set_value();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (event.finish) ended.set_value(*event.finish);
    });
    ASSERT_TRUE(handle.ok());
    begun.get_future().wait();
  }
  EXPECT_EQ(ended.get_future().get(), FinishReason::kCancelled);
}

TEST_F(SessionTest, AReleasedRequestGoesOn) {
  std::promise<FinishReason> ended;
  session_
      ->Submit(Ask({3, 4}, 50),
               [&](RequestEvent event) {
                 if (event.finish) ended.set_value(*event.finish);
               })
      ->Release();
  EXPECT_EQ(ended.get_future().get(), FinishReason::kLength);
}

TEST_F(SessionTest, StreamsAndHandlesMayOutliveTheSession) {
  std::optional<RequestStream> stream = session_->Start(Ask({3, 4}, kMaxModelLen - 2)).value();
  RequestHandle handle =
      std::move(session_->Submit(Ask({5}, kMaxModelLen - 1), [](RequestEvent) {}).value());
  session_.reset();
  handle.Cancel();
  EXPECT_TRUE(Read(*stream).second.finish.has_value());
  stream.reset();
}

TEST_F(SessionTest, SeveralAnswersToOnePromptHaveTheirOwnSeeds) {
  std::mutex mutex;
  std::map<RequestId, std::vector<int32_t>> answers;
  std::promise<void> done;
  size_t num_ended = 0;
  auto handles = session_->Submit(Ask({3, 4, 5}, 10), 3, [&](RequestEvent event) {
    const std::lock_guard lock(mutex);
    for (const SampledToken& token : event.tokens) answers[event.id].push_back(token.id);
    if (event.finish && ++num_ended == 3) done.set_value();
  });
  ASSERT_TRUE(handles.ok());
  done.get_future().wait();
  // The sink of the last event has left what stands on this stack.
  const std::lock_guard lock(mutex);
  for (const RequestHandle& handle : *handles) EXPECT_EQ(answers.at(handle.id()).size(), 10u);
}

TEST_F(SessionTest, ManyThreadsMaySubmitAtOnce) {
  std::vector<std::thread> threads;
  for (int thread_idx = 0; thread_idx < 8; ++thread_idx) {
    threads.emplace_back([this, thread_idx] {
      for (int32_t round = 0; round < 20; ++round) {
        const std::vector<int32_t> prompt = {thread_idx + 1, round};
        RequestStream stream = session_->Start(Ask(prompt, 5)).value();
        EXPECT_EQ(Read(stream).first, Continuation(prompt, 5));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SessionTest, RunAllReturnsOutputsInTheOrderOfRequests) {
  std::vector<Request> requests;
  for (int32_t idx = 0; idx < 30; ++idx) requests.push_back(Ask({1, idx}, 1 + idx % 7));
  int num_done = 0;
  const auto outputs = session_->RunAll(requests, 4, [&] { ++num_done; });
  ASSERT_TRUE(outputs.ok()) << outputs.error().message;
  EXPECT_EQ(num_done, 30);
  for (int32_t idx = 0; idx < 30; ++idx) {
    EXPECT_EQ((*outputs)[idx], Continuation(std::vector<int32_t>{1, idx}, 1 + idx % 7));
  }
}

TEST_F(SessionTest, RunAllEndsWithTheFirstRefusal) {
  std::vector<Request> requests(10, Ask({1, 2}, 5));
  requests[6].prompt.ids = {-1};
  const auto outputs = session_->RunAll(requests, 2, [] {});
  ASSERT_FALSE(outputs.ok());
  EXPECT_NE(outputs.error().message.find("-1"), std::string::npos) << outputs.error().message;
  while (session_->engine().stats().scheduler.num_running > 0) std::this_thread::yield();
}

TEST(SessionLoad, APresetWithDummyWeightsRuns) {
  SessionOptions options;
  options.load.format = LoadFormat::kDummy;
  options.load.num_threads = 1;
  options.load.limits = {.max_num_seqs = 2, .max_num_batched_tokens = 8, .max_model_len = 40};
  auto session = Session::Load(ModelFiles::Open("tiny-e").value(), options);
  ASSERT_TRUE(session.ok()) << session.error().message;
  EXPECT_EQ((*session)->max_model_len(), 40);
  Request request;
  request.prompt.ids = {2, 5, 9};
  const auto outputs = (*session)->RunAll({request, request}, 2, [] {});
  ASSERT_TRUE(outputs.ok()) << outputs.error().message;
  EXPECT_EQ((*outputs)[0].size(), 37u);  // greedy, stopping nowhere
  EXPECT_EQ((*outputs)[0], (*outputs)[1]);
}

}  // namespace
}  // namespace lapidary
