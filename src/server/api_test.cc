#include "server/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <fstream>

#include "engine/fake_executor.h"
#include "model/presets.h"
#include "synth/byte_tokenizer.h"

namespace lapidary {
namespace {

using testing::HasSubstr;
using testing::Not;

// A client without a network: keeps what it is sent.
class FakeClient final : public Responder {
 public:
  void Post(std::function<void()> task) override {
    const std::lock_guard lock(strand_);  // One at a time, on whichever thread.
    task();
  }
  void Send(HttpResponse response) override {
    response_ = std::move(response);
    Complete();
  }
  void BeginEvents(StreamFraming) override {}
  void SendEvent(std::string_view, std::string_view data) override { events_.emplace_back(data); }
  void EndEvents() override { Complete(); }
  bool gone() const override { return false; }
  std::shared_ptr<const std::atomic<bool>> gone_flag() const override { return gone_; }
  void OnCutShort(std::function<void(const ApiStatus&)>) override {}
  AccessRecord& access() override { return access_; }

  bool is_complete() {
    const std::lock_guard lock(mutex_);
    return is_complete_;
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return is_complete_; }));
  }

  HttpResponse response_;
  std::vector<std::string> events_;
  AccessRecord access_;

 private:
  void Complete() {
    const std::lock_guard lock(mutex_);
    is_complete_ = true;
    changed_.notify_all();
  }

  const std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);
  std::recursive_mutex strand_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_complete_ = false;
};

// Works until it is told to fail like a lost device, or to pause.
class BreakableExecutor : public FakeExecutor {
 public:
  using FakeExecutor::FakeExecutor;
  StepOutput Collect() override {
    if (is_broken) throw std::runtime_error("the device is gone");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (is_paused) {
      is_waiting = true;
      is_paused.wait(true);
    }
    return FakeExecutor::Collect();
  }
  void Resume() {
    is_paused = false;
    is_paused.notify_all();
  }
  std::atomic<bool> is_broken{false};
  std::atomic<bool> is_paused{false};
  std::atomic<bool> is_waiting{false};
};

class ApiTest : public testing::Test {
 protected:
  explicit ApiTest(const EngineOptions& options = {})
      : directory_(std::filesystem::path(testing::TempDir()) /
                   testing::UnitTest::GetInstance()->current_test_info()->name()) {
    const ModelPlan plan =
        MakeModelPlan(ParseModelConfig(*PresetConfig("tiny-e"), "tiny-e").value()).value();
    auto executor =
        std::make_unique<BreakableExecutor>(plan, MakeKvLayout(plan, KvFormat::kF32, {4, 8}), 400);
    executor_ = executor.get();
    std::filesystem::create_directories(directory_);
    std::ofstream(directory_ / "config.json") << R"({"eos_token_id": [1]})";
    std::ofstream(directory_ / "tokenizer.json") << ByteTokenizer(plan.vocab_size).value().dump();
    const auto text = std::make_shared<const TextModel>(TextModel::Load(directory_).value());
    session_ =
        std::make_unique<Session>(std::make_unique<Engine>(std::move(executor), options), text);
    model_.emplace(ServedModel::Make(text, {"m"}, 1024).value());
    metrics_ = std::make_unique<ServerMetrics>("test:", "m", session_->engine());
    api_ = std::make_unique<Api>(*session_, *model_, *metrics_);
  }
  ~ApiTest() override {
    api_.reset();
    session_.reset();
    std::filesystem::remove_all(directory_);
  }

  std::shared_ptr<FakeClient> Ask(const std::string& method, const std::string& path,
                                  const std::string& body = "") {
    auto client = std::make_shared<FakeClient>();
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.body = body;
    client->Post([&] { api_->Handle(std::move(request), client); });
    return client;
  }

  const std::filesystem::path directory_;
  BreakableExecutor* executor_ = nullptr;
  std::unique_ptr<Session> session_;
  std::optional<ServedModel> model_;
  std::unique_ptr<ServerMetrics> metrics_;
  std::unique_ptr<Api> api_;
};

constexpr const char* kLongRequest =
    R"({"prompt": "x", "max_tokens": 900, "ignore_eos": true, "stream": false})";
constexpr const char* kLongStream =
    R"({"prompt": "x", "max_tokens": 900, "ignore_eos": true, "stream": true})";

TEST_F(ApiTest, AFailedDeviceEndsWhatIsOpenAndEverythingAfterIs503) {
  const auto health = Ask("GET", "/health");
  health->Wait();
  EXPECT_EQ(health->response_.status, 200);

  const auto whole = Ask("POST", "/v1/completions", kLongRequest);
  const auto stream = Ask("POST", "/v1/completions", kLongStream);
  while (session_->engine().stats().scheduler.num_running < 2) std::this_thread::yield();
  executor_->is_broken = true;
  whole->Wait();
  stream->Wait();
  EXPECT_EQ(whole->response_.status, 503);
  EXPECT_THAT(whole->response_.body, HasSubstr("engine_failed"));
  EXPECT_THAT(whole->response_.body, Not(HasSubstr("the device is gone")));
  ASSERT_GE(stream->events_.size(), 2u);
  EXPECT_THAT(stream->events_[stream->events_.size() - 2], HasSubstr("engine_failed"));
  EXPECT_EQ(stream->events_.back(), "[DONE]");

  for (const auto& late : {Ask("GET", "/health"), Ask("POST", "/v1/completions", kLongRequest),
                           Ask("POST", "/v1/completions", kLongStream)}) {
    late->Wait();
    EXPECT_EQ(late->response_.status, 503);
    EXPECT_THAT(late->response_.body, HasSubstr("engine_failed"));
  }
}

// Three may wait while one runs, and no sequence is as long as the front end believes.
class BusyApiTest : public ApiTest {
 protected:
  static EngineOptions Options() {
    EngineOptions options;
    options.limits.max_num_seqs = 1;
    options.max_queue = 3;
    options.limits.max_model_len = 1000;
    return options;
  }
  BusyApiTest() : ApiTest(Options()) {}

  static OrderedJson ErrorOf(const FakeClient& client) {
    return OrderedJson::parse(client.response_.body).at("error");
  }
};

TEST_F(BusyApiTest, AFullQueueIsA503ThatAdvisesToWait) {
  executor_->is_paused = true;
  const auto running = Ask("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 5})");
  while (!executor_->is_waiting) std::this_thread::yield();
  // Each of these fills the queue; whichever comes second finds it full.
  const char* three = R"({"prompt": "x", "max_tokens": 2, "n": 3})";
  auto refused = Ask("POST", "/v1/completions", three);
  auto accepted = Ask("POST", "/v1/completions", three);
  while (!refused->is_complete() && !accepted->is_complete()) std::this_thread::yield();
  if (accepted->is_complete()) std::swap(refused, accepted);
  EXPECT_EQ(refused->response_.status, 503);
  EXPECT_EQ(ErrorOf(*refused).at("code"), "queue_full");
  EXPECT_EQ(ErrorOf(*refused).at("type"), "service_unavailable_error");
  executor_->Resume();
  running->Wait();
  accepted->Wait();
  EXPECT_EQ(running->response_.status, 200);
  EXPECT_EQ(accepted->response_.status, 200);
}

TEST_F(BusyApiTest, WhatCanNeverRunIsA400) {
  for (const auto& [body, message] :
       {std::pair(R"({"prompt": "x", "max_tokens": 1010})", "the context holds 1000 tokens"),
        std::pair(R"({"prompt": "x", "max_tokens": 1, "n": 4})",
                  "4 answers were asked for at once"),
        std::pair(R"({"prompt": ["x", "y"], "max_tokens": 1, "n": 2})",
                  "4 answers were asked for at once"),
        std::pair(R"({"prompt": "x", "max_tokens": 1, "n": 4, "stream": true})",
                  "only 3 may wait (--max-queue)")}) {
    const auto client = Ask("POST", "/v1/completions", body);
    client->Wait();
    EXPECT_EQ(client->response_.status, 400) << body;
    EXPECT_THAT(ErrorOf(*client).at("message").get<std::string>(), HasSubstr(message));
    EXPECT_EQ(ErrorOf(*client).at("type"), "invalid_request_error");
    EXPECT_EQ(ErrorOf(*client).at("code"), 400);
  }
}

TEST_F(ApiTest, AWrongMethodIsToldTheRightOnes) {
  const auto allowed = [&](const std::string& method, const std::string& path) {
    const auto client = Ask(method, path);
    client->Wait();
    EXPECT_EQ(client->response_.status, 405);
    for (const auto& [name, value] : client->response_.headers) {
      if (name == "Allow") return value;
    }
    return std::string();
  };
  EXPECT_EQ(allowed("GET", "/v1/completions"), "POST, OPTIONS");
  EXPECT_EQ(allowed("DELETE", "/v1/models/m"), "GET, HEAD, OPTIONS");
}

TEST_F(ApiTest, ErrorsQuoteLittleOfARequest) {
  const std::string text(1'000'000, 'x');
  const std::string quoted = std::string(200, 'x') + "...";
  const auto message_of = [&](const std::string& path, const OrderedJson& body) {
    const auto client = Ask("POST", path, body.dump());
    client->Wait();
    return OrderedJson::parse(client->response_.body)["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(message_of("/v1/completions", {{"prompt", "x"}, {"model", text}}),
            "the model '" + quoted + "' does not exist; this server has 'm'");
  EXPECT_EQ(message_of("/v1/responses", {{"input", "x"}, {"previous_response_id", text}}),
            "the response '" + quoted + "' is not stored here (any more)");
  EXPECT_EQ(message_of("/v1/responses", {{"input", {{{"type", text}}}}}),
            "input[0]: items of type '" + quoted + "' are not supported");
  EXPECT_EQ(message_of("/v1/" + text, {}), "there is no POST /v1/" + quoted.substr(4));
  EXPECT_LE(ApiError{.message = text}.ToJson()["error"]["message"].get<std::string>().size(),
            kMaxErrorChars + 3);
}

TEST(RequestJson, ListsOfTokenIdsTakeLittleMoreThanTheirText) {
  constexpr int kNumIds = 100'000;
  constexpr size_t kMaxBytes = 24 * kNumIds;  // of which large requests leave an eighth to others
  std::string ids = "[7";
  for (int id = 1; id < kNumIds; ++id) ids += ", 7";
  ids += "]";
  const auto parse = [](const std::string& body, size_t max_bytes, OrderedJson* json) {
    ByteLease lease(std::make_shared<ByteBudget>(max_bytes));
    return ParseRequestJson(body, json, &lease);
  };
  OrderedJson json;
  ASSERT_FALSE(parse(R"({"prompt": )" + ids + "}", kMaxBytes, &json));
  EXPECT_EQ(ReadTokenIds(json["prompt"])->size(), size_t{kNumIds});
  ASSERT_FALSE(parse(R"({"n": 2, "prompt": [)" + ids + ", [1, 2]]}", kMaxBytes, &json));
  ASSERT_EQ(json["prompt"].size(), 2u);
  EXPECT_EQ(*ReadTokenIds(json["prompt"][1]), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(json["n"], 2);
  // Elsewhere they are a tree.
  EXPECT_EQ(parse(R"({"other": )" + ids + "}", kMaxBytes, &json)->status, 413);
}

TEST(RequestJson, WhatIsNoListOfTokenIdsIsNotTakenForOne) {
  for (const char* prompt : {R"([1, "a"])", R"(["a", 1])", "[1, [2]]", "[[2], 1]", "[-1]", "[1.5]",
                             "[1, null]", "[4294967296]", R"({"a": [1]})"}) {
    OrderedJson json;
    ASSERT_FALSE(ParseRequestJson(fmt::format(R"({{"prompt": {}}})", prompt), &json)) << prompt;
    EXPECT_FALSE(ReadTokenIds(json["prompt"]).has_value()) << prompt;
    CompletionRequest request;
    const ApiStatus refused = ParseCompletionRequest(json, {}, &request);
    ASSERT_TRUE(refused) << prompt;
    EXPECT_EQ(refused->param, "prompt");
  }
}

}  // namespace
}  // namespace lapidary
