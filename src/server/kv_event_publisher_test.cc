#include "server/kv_event_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <zmq.hpp>

#include "kv/prefix_cache.h"
#include "model/presets.h"
#include "server/kv_event_batch.h"
#include "server/msgpack.h"

namespace lapidary {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

// --- What is written.

std::string Written(const std::function<void(MsgpackWriter&)>& write) {
  MsgpackWriter writer;
  write(writer);
  return writer.bytes();
}

std::string Bytes(std::initializer_list<int> values) {
  return std::string(values.begin(), values.end());
}

TEST(Msgpack, IntegersAreAsShortAsTheyCanBe) {
  const auto of = [](int64_t value) {
    return Written([&](MsgpackWriter& writer) { writer.Int(value); });
  };
  EXPECT_EQ(of(0), Bytes({0}));
  EXPECT_EQ(of(127), Bytes({0x7f}));
  EXPECT_EQ(of(128), Bytes({0xcc, 0x80}));
  EXPECT_EQ(of(256), Bytes({0xcd, 1, 0}));
  EXPECT_EQ(of(65536), Bytes({0xce, 0, 1, 0, 0}));
  EXPECT_EQ(of(int64_t{1} << 32), Bytes({0xcf, 0, 0, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(of(-1), Bytes({0xff}));
  EXPECT_EQ(of(-32), Bytes({0xe0}));
  EXPECT_EQ(of(-33), Bytes({0xd0, 0xdf}));
  EXPECT_EQ(of(-129), Bytes({0xd1, 0xff, 0x7f}));
  EXPECT_EQ(of(-32769), Bytes({0xd2, 0xff, 0xff, 0x7f, 0xff}));
  EXPECT_EQ(of(INT64_MIN), Bytes({0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(Msgpack, LengthsOfTextsArraysAndMaps) {
  const auto head = [](const std::function<void(MsgpackWriter&)>& write, size_t num_bytes) {
    return Written(write).substr(0, num_bytes);
  };
  EXPECT_EQ(Written([](MsgpackWriter& writer) { writer.Text("ab"); }),
            "\xa2"
            "ab");
  EXPECT_EQ(head([](auto& writer) { writer.Text(std::string(32, 'x')); }, 2), Bytes({0xd9, 32}));
  EXPECT_EQ(head([](auto& writer) { writer.Text(std::string(256, 'x')); }, 3), Bytes({0xda, 1, 0}));
  EXPECT_EQ(head([](auto& writer) { writer.Text(std::string(65536, 'x')); }, 5),
            Bytes({0xdb, 0, 1, 0, 0}));
  EXPECT_EQ(Written([](auto& writer) { writer.Array(15); }), Bytes({0x9f}));
  EXPECT_EQ(Written([](auto& writer) { writer.Array(16); }), Bytes({0xdc, 0, 16}));
  EXPECT_EQ(Written([](auto& writer) { writer.Array(65536); }), Bytes({0xdd, 0, 1, 0, 0}));
  EXPECT_EQ(Written([](auto& writer) { writer.Map(16); }), Bytes({0xde, 0, 16}));
  EXPECT_EQ(Written([](auto& writer) { writer.Map(65536); }), Bytes({0xdf, 0, 1, 0, 0}));
  EXPECT_EQ(Written([](auto& writer) { writer.Double(1.5); }),
            Bytes({0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0}));
}

// --- What is configured.

TEST(KvEventsConfig, DefaultsAreThoseOfVllm) {
  const auto config = KvEventsConfig::Parse(R"({"enable_kv_cache_events": true})");
  ASSERT_TRUE(config.ok() && *config);
  EXPECT_EQ((*config)->endpoint, "tcp://*:5557");
  EXPECT_EQ((*config)->replay_endpoint, "");
  EXPECT_EQ((*config)->buffer_steps, 10000);
  EXPECT_EQ((*config)->hwm, 100000);
  for (const char* off : {"", "{}", R"({"enable_kv_cache_events": false, "publisher": "zmq"})",
                          R"({"enable_kv_cache_events": true, "publisher": "null"})",
                          R"({"enable_kv_cache_events": false, "replay_endpoint": null})"}) {
    const auto parsed = KvEventsConfig::Parse(off);
    ASSERT_TRUE(parsed.ok()) << off;
    EXPECT_FALSE(parsed->has_value()) << off;
  }
}

TEST(KvEventsConfig, WhatIsWrongIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"nonsense", "--kv-events-config"},
      {"[1]", "must be a JSON object"},
      {R"({"enable_kv_cache_events": 1})", "enable_kv_cache_events"},
      {R"({"enable": true})", "there is no 'enable'; it takes enable_kv_cache_events"},
      {R"({"enable_kv_cache_events": true, "publisher": "kafka"})", "publisher 'kafka'"},
      {R"({"enable_kv_cache_events": true, "endpoint": "*:5557"})", "endpoint '*:5557'"},
      {R"({"enable_kv_cache_events": true, "endpoint": ""})", "endpoint ''"},
      {R"({"enable_kv_cache_events": true, "endpoint": "tcp://*:70000"})", "tcp://*:70000"},
      {R"({"enable_kv_cache_events": true, "endpoint": "inproc://x"})", "inproc://x"},
      {R"({"enable_kv_cache_events": true, "replay_endpoint": "tcp://:"})", "replay_endpoint"},
      {R"({"enable_kv_cache_events": true, "buffer_steps": 0})", "buffer_steps"},
      {R"({"enable_kv_cache_events": true, "hwm": 1e10})", "hwm"},
      {R"({"enable_kv_cache_events": true, "hwm": 5, "hwm": 6})", "hwm"},
      {R"({"enable_kv_cache_events": true, "topic": 5})", "topic"}};
  for (const auto& [json, words] : cases) {
    const auto parsed = KvEventsConfig::Parse(json);
    ASSERT_FALSE(parsed.ok()) << json;
    EXPECT_THAT(parsed.error().message, HasSubstr(words)) << json;
    EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos) << json;
  }
}

// --- What is sent.

struct Received {
  std::string topic;
  uint64_t seq = 0;
  std::string payload;
};

uint64_t Number(const zmq::message_t& frame) {
  uint64_t value = 0;
  for (size_t idx = 0; idx < frame.size(); ++idx) value = value << 8 | frame.data<uint8_t>()[idx];
  return value;
}

class PublisherTest : public testing::Test {
 protected:
  PublisherTest() : folder_(std::filesystem::temp_directory_path() / MakeName()) {
    std::filesystem::create_directory(folder_);
    config_.endpoint = "ipc://" + (folder_ / "events").string();
    config_.replay_endpoint = "ipc://" + (folder_ / "replay").string();
    config_.topic = "kv@here@model";
  }
  ~PublisherTest() override {
    cache_.reset();
    publisher_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start() {
    auto publisher = KvEventPublisher::Open(config_);
    ASSERT_TRUE(publisher.ok()) << publisher.error().message;
    publisher_ = std::move(publisher).value();
    cache_.emplace(plan_, layout_, pool_);
    cache_->set_observer(&publisher_->changes());
  }
  zmq::socket_t Subscribe() {
    zmq::socket_t subscriber(context_, zmq::socket_type::sub);
    subscriber.set(zmq::sockopt::rcvtimeo, 20'000);
    subscriber.set(zmq::sockopt::subscribe, "kv@");
    subscriber.connect(publisher_->endpoint());
    return subscriber;
  }
  static std::optional<Received> Receive(zmq::socket_t& socket, size_t num_frames = 3) {
    std::vector<zmq::message_t> frames;
    do {
      zmq::message_t frame;
      if (!socket.recv(frame)) return std::nullopt;
      frames.push_back(std::move(frame));
    } while (frames.back().more());
    EXPECT_EQ(frames.size(), num_frames);
    const size_t first = num_frames - 3;
    EXPECT_EQ(frames[first + 1].size(), 8u);
    return Received{frames[first].to_string(), Number(frames[first + 1]),
                    frames[first + 2].to_string()};
  }
  // A prompt of its own kind is cached.
  void Cache(int32_t kind, int32_t length = 40) {
    std::vector<int32_t> ids(length, 1000 + kind);
    PrefixHashes hashes(1, {});
    hashes.Extend(ids);
    std::vector<PageIndex> pages;
    for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
      const int tokens = layout_.tokens_per_page[group_idx];
      for (int32_t block = 0; block * tokens < length; ++block) {
        while (pool_.num_free() == 0) cache_->EvictOne();
        pages.push_back(pool_.Allocate(group_idx));
        cache_->Keep(group_idx, block, pages.back(), hashes, length, 1, ids);
      }
    }
    for (const PageIndex page : pages) pool_.Free(page);
    publisher_->changes().HandOverAll();
  }
  static void AskForReplay(zmq::socket_t& client, uint64_t from) {
    std::vector<uint8_t> seq(8);
    for (int idx = 0; idx < 8; ++idx) seq[idx] = static_cast<uint8_t>(from >> (56 - 8 * idx));
    client.send(zmq::message_t(), zmq::send_flags::sndmore);
    client.send(zmq::buffer(seq), zmq::send_flags::none);
  }
  static std::vector<Received> ReadReplay(zmq::socket_t& client) {
    std::vector<Received> batches;
    while (true) {
      std::optional<Received> batch = Receive(client, 4);
      if (!batch) {
        ADD_FAILURE() << "the replay does not end";
        return batches;
      }
      if (batch->payload.empty()) {
        EXPECT_EQ(batch->seq, UINT64_MAX);
        return batches;
      }
      batches.push_back(std::move(*batch));
    }
  }
  static std::vector<Received> Replay(zmq::socket_t& client, uint64_t from) {
    AskForReplay(client, from);
    return ReadReplay(client);
  }
  zmq::socket_t ReplayClient() {
    zmq::socket_t client(context_, zmq::socket_type::dealer);
    client.set(zmq::sockopt::rcvtimeo, 20'000);
    client.set(zmq::sockopt::rcvhwm, 1);
    client.connect(publisher_->replay_endpoint());
    return client;
  }

  static std::string MakeName() {
    return "lapidary-kv-" + std::to_string(getpid()) + "-" +
           testing::UnitTest::GetInstance()->current_test_info()->name();
  }

  const std::filesystem::path folder_;
  const ModelPlan plan_ =
      MakeModelPlan(ParseModelConfig(*PresetConfig("tiny-e"), "tiny-e").value()).value();
  const KvLayout layout_ = MakeKvLayout(plan_, KvFormat::kF32, {4, 8});
  KvEventsConfig config_;
  zmq::context_t context_;
  std::unique_ptr<KvEventPublisher> publisher_;
  PagePool pool_{400};
  std::optional<PrefixCache> cache_;
};

TEST_F(PublisherTest, BatchesAreNumberedAndTheFirstClearsWhatWasThereBefore) {
  Start();
  publisher_->Start(plan_, layout_);
  zmq::socket_t subscriber = Subscribe();
  zmq::socket_t client = ReplayClient();
  ASSERT_EQ(Replay(client, 0).size(), 1u);  // Nothing else is known of a subscription's arrival.
  std::optional<Received> live;
  subscriber.set(zmq::sockopt::rcvtimeo, 100);
  for (int kind = 0; !live && kind < 200; ++kind) {
    Cache(kind);
    live = Receive(subscriber);
  }
  ASSERT_TRUE(live);
  EXPECT_EQ(live->topic, "kv@here@model");
  const std::vector<Received> batches = Replay(client, 0);
  ASSERT_GE(batches.size(), 2u);
  for (size_t idx = 0; idx < batches.size(); ++idx) {
    EXPECT_EQ(batches[idx].seq, idx);
    EXPECT_EQ(batches[idx].topic, "kv@here@model");
  }
  EXPECT_THAT(batches[0].payload, HasSubstr("AllBlocksCleared"));
  EXPECT_THAT(batches[1].payload, HasSubstr("BlockStored"));
  ASSERT_LT(live->seq, batches.size());
  EXPECT_EQ(batches[live->seq].payload, live->payload);
  EXPECT_EQ(Replay(client, live->seq).front().seq, live->seq);
  EXPECT_TRUE(Replay(client, 1000).empty());
}

TEST_F(PublisherTest, ASlowSubscriberLosesBatchesAndAReplayClosesTheGap) {
  config_.hwm = 1;
  Start();
  publisher_->Start(plan_, layout_);
  zmq::socket_t slow(context_, zmq::socket_type::sub);
  slow.set(zmq::sockopt::rcvhwm, 1);
  slow.set(zmq::sockopt::rcvbuf, 4096);
  slow.set(zmq::sockopt::rcvtimeo, 1000);
  slow.set(zmq::sockopt::subscribe, "");
  slow.connect(publisher_->endpoint());
  zmq::socket_t quick = ReplayClient();
  // More than sockets hold: 300 batches of 3 KiB. The publisher takes each from the queue.
  uint64_t num_batches = 1;
  for (int kind = 0; num_batches < 300; ++kind) {
    Cache(kind, 1000);
    const std::vector<Received> news = Replay(quick, num_batches);
    num_batches += news.size();
    ASSERT_LT(kind, 5000);
  }
  std::set<uint64_t> seen;
  while (const std::optional<Received> batch = Receive(slow)) seen.insert(batch->seq);
  ASSERT_LT(seen.size(), num_batches) << "nothing was lost";
  // A replay brings all of them, in order. A client that does not read delays no other.
  zmq::socket_t client = ReplayClient();
  AskForReplay(client, 0);
  EXPECT_EQ(Replay(quick, 0).size(), num_batches);
  Cache(-1);
  const std::vector<Received> batches = ReadReplay(client);
  ASSERT_GE(batches.size(), num_batches);
  for (size_t idx = 0; idx < batches.size(); ++idx) ASSERT_EQ(batches[idx].seq, idx);
}

TEST_F(PublisherTest, OnlyTheLastBatchesAreKeptForReplay) {
  config_.buffer_steps = 3;
  Start();
  publisher_->Start(plan_, layout_);
  zmq::socket_t client = ReplayClient();
  uint64_t last = 0;
  for (int kind = 0; last < 6 && kind < 5000; ++kind) {
    Cache(kind);
    const std::vector<Received> batches = Replay(client, 0);
    ASSERT_LE(batches.size(), 3u);
    last = batches.back().seq;
    EXPECT_EQ(batches.front().seq, last < 2 ? 0 : last - 2);
  }
  EXPECT_GE(last, 6u);
}

TEST_F(PublisherTest, WrongReplayRequestsAreLeftUnanswered) {
  Start();
  publisher_->Start(plan_, layout_);
  zmq::socket_t client = ReplayClient();
  client.send(zmq::str_buffer("x"), zmq::send_flags::none);
  for (int frame = 0; frame < 20; ++frame) {
    client.send(zmq::str_buffer("yyyyyyyy"),
                frame < 19 ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
  client.send(zmq::message_t(), zmq::send_flags::sndmore);
  client.send(zmq::str_buffer("short"), zmq::send_flags::none);
  EXPECT_EQ(Replay(client, 0).size(), 1u) << "later requests are served";
}

TEST_F(PublisherTest, ATakenEndpointIsSaidSo) {
  config_.endpoint = "tcp://[::1]:0*";
  EXPECT_FALSE(KvEventPublisher::Open(config_).ok());
  zmq::socket_t other(context_, zmq::socket_type::pub);
  other.bind("tcp://127.0.0.1:*");
  const std::string taken = other.get(zmq::sockopt::last_endpoint);
  config_.replay_endpoint = taken;
  config_.endpoint = "ipc://" + (folder_ / "events").string();
  const auto publisher = KvEventPublisher::Open(config_);
  ASSERT_FALSE(publisher.ok());
  EXPECT_THAT(publisher.error().message, HasSubstr("--kv-events-config: replay_endpoint " + taken +
                                                   ": Address already in use"));
}

}  // namespace
}  // namespace lapidary
