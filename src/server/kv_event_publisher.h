// Tells routers which blocks of prompts this server has cached, by ZeroMQ, as vLLM does: so they
// can send a prompt where most of it is cached.
//
//   engine's thread --changes--> CacheChangeQueue --> this one's --batches--> PUB: subscribers
//                                                       the last batches ----> ROUTER: replay
//
// A batch is [topic, its number (8 bytes, the highest first), MessagePack]. A subscriber that is
// too slow loses batches, sees a gap in their numbers, and asks the replay endpoint for all from a
// number on; nothing waits for it. The first batch says that all blocks are gone: what an earlier
// server at this address had.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "kv/cache_changes.h"
#include "kv/resumable_blocks.h"

namespace lapidary {

// vLLM's, with its defaults.
struct KvEventsConfig {
  std::string endpoint = "tcp://*:5557";
  std::string replay_endpoint;  // empty: none
  int buffer_steps = 10'000;    // batches kept for replay
  int hwm = 100'000;            // batches that may wait for a subscriber
  std::string topic;

  // `json` as vLLM's --kv-events-config. Nothing where it asks for no events.
  static Result<std::optional<KvEventsConfig>> Parse(const std::string& json);
};

class KvEventPublisher {
 public:
  // Batches for replay take no more than this: the oldest go, however few there are.
  static constexpr size_t kMaxReplayBytes = size_t{256} << 20;

  // Takes the endpoints.
  static Result<std::unique_ptr<KvEventPublisher>> Open(const KvEventsConfig& config);
  // Publishes what was handed over until then.
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // Where the cache's thread puts its changes: there before the engine is.
  CacheChangeQueue& changes() { return changes_; }
  // Begins to publish.
  void Start(const ModelPlan& plan, const KvLayout& layout);
  // Of the two, with their ports; empty: none.
  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

 private:
  class Sockets;
  explicit KvEventPublisher(const KvEventsConfig& config);

  void Loop();
  // What was handed over; false: nothing was.
  bool PublishChanges();
  void Publish(std::span<const BlockEvent> events);
  void Wake() const;

  const KvEventsConfig config_;
  CacheChangeQueue changes_;
  std::unique_ptr<Sockets> sockets_;
  std::string endpoint_;
  std::string replay_endpoint_;
  int wake_fd_ = -1;
  std::atomic<bool> stopping_{false};

  // Of the thread.
  std::optional<const ModelPlan> plan_;
  std::optional<const KvLayout> layout_;
  std::optional<ResumableBlocks> blocks_;
  CacheChanges taken_;
  uint64_t num_losses_told_ = 0;
  std::thread thread_;
};

}  // namespace lapidary
