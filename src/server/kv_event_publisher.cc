#include "server/kv_event_publisher.h"

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>
#include <zmq.hpp>

#include "base/json_fields.h"
#include "server/kv_event_batch.h"
#include "server/limited_warning.h"

namespace lapidary {
namespace {

// Changes gather for this long, so the engine does not wake the thread at every step.
constexpr std::chrono::milliseconds kGatherTime{2};
// How long a replay waits for a client that is slower than it.
constexpr std::chrono::milliseconds kReplayPause{5};
constexpr int kMaxReplays = 64;             // at once
constexpr int kReplayHwm = 128;             // batches that may wait for a client of it
constexpr int kMaxReplayTurn = 256;         // batches, before others get theirs
constexpr int64_t kMaxRequestBytes = 4096;  // a topic, or a number
constexpr int kLastWordsMs = 500;           // for what is on its way when the server stops

using Seq = std::array<uint8_t, 8>;

Seq BigEndian(uint64_t value) {
  Seq bytes;
  for (int idx = 0; idx < 8; ++idx) bytes[idx] = static_cast<uint8_t>(value >> (56 - 8 * idx));
  return bytes;
}

double SecondsSince1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool IsEndpoint(const std::string& endpoint) {
  if (endpoint.starts_with("ipc://")) return endpoint.size() > 6;
  if (!endpoint.starts_with("tcp://")) return false;
  const size_t colon = endpoint.rfind(':');
  const std::string port = endpoint.substr(colon + 1);
  return colon > 6 && !port.empty() && port.size() <= 5 &&
         std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; }) &&
         std::stoi(port) <= 65535;
}

// As vLLM decides: what names this machine is taken, another's address is connected to.
bool IsOurs(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://");
}

}  // namespace

Result<std::optional<KvEventsConfig>> KvEventsConfig::Parse(const std::string& text) {
  constexpr const char* kName = "--kv-events-config";
  if (text.empty()) return std::optional<KvEventsConfig>();
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, kName, {.unique_names = true}));
  if (!json.is_object()) {
    return MakeError("{}: must be a JSON object, such as {{\"enable_kv_cache_events\": true}}",
                     kName);
  }
  for (const auto& [key, value] : json.items()) {
    constexpr std::array kKeys = {"enable_kv_cache_events", "publisher",    "endpoint",
                                  "replay_endpoint",        "buffer_steps", "hwm",
                                  "max_queue_size",         "topic"};
    if (std::ranges::find(kKeys, key) == kKeys.end()) {
      return MakeError("{}: there is no '{}'; it takes {}", kName, ShortUtf8(key, 60),
                       fmt::join(kKeys, ", "));
    }
  }
  JsonFields fields(json, kName);
  KvEventsConfig config;
  const bool is_enabled = fields.BoolOr("enable_kv_cache_events", false);
  const std::string publisher = fields.StringOr("publisher", is_enabled ? "zmq" : "null");
  config.endpoint = fields.StringOr("endpoint", config.endpoint);
  config.replay_endpoint = fields.StringOr("replay_endpoint", "");
  config.buffer_steps =
      static_cast<int>(fields.IntOr("buffer_steps", config.buffer_steps, {.min = 1}));
  config.hwm = static_cast<int>(fields.IntOr("hwm", config.hwm, {.min = 1}));
  // What waits here is bounded by its bytes (CacheChangeQueue).
  fields.IntOr("max_queue_size", 1, {.min = 1});
  config.topic = fields.StringOr("topic", "");
  RETURN_IF_ERROR(fields.status());
  if (publisher != "zmq" && publisher != "null") {
    return MakeError("{}: publisher '{}': must be zmq or null", kName, ShortUtf8(publisher, 60));
  }
  const auto check = [&](const char* key, const std::string& endpoint) -> Status {
    if (IsEndpoint(endpoint)) return {};
    return MakeError("{}: {} '{}': an endpoint looks like tcp://*:5557 or ipc:///run/kv-events",
                     kName, key, ShortUtf8(endpoint, 100));
  };
  RETURN_IF_ERROR(check("endpoint", config.endpoint));
  if (!config.replay_endpoint.empty()) {
    RETURN_IF_ERROR(check("replay_endpoint", config.replay_endpoint));
  }
  if (!is_enabled || publisher == "null") return std::optional<KvEventsConfig>();
  return std::optional(std::move(config));
}

// Both are used on one thread at a time.
class KvEventPublisher::Sockets {
 public:
  explicit Sockets(const KvEventsConfig& config)
      : config_(config), publishing_(context_, zmq::socket_type::pub) {
    publishing_.set(zmq::sockopt::sndhwm, config.hwm);
    publishing_.set(zmq::sockopt::linger, kLastWordsMs);
    publishing_.set(zmq::sockopt::maxmsgsize, kMaxRequestBytes);
    if (config.replay_endpoint.empty()) return;
    replaying_.emplace(context_, zmq::socket_type::router);
    replaying_->set(zmq::sockopt::sndhwm, kReplayHwm);
    replaying_->set(zmq::sockopt::linger, 0);
    replaying_->set(zmq::sockopt::maxmsgsize, kMaxRequestBytes);
    replaying_->set(zmq::sockopt::router_mandatory, true);  // Says so where a client is slow.
  }

  Result<std::string> OpenPublishing() {
    return Open(publishing_, config_.endpoint, "endpoint", IsOurs(config_.endpoint));
  }
  Result<std::string> OpenReplaying() {
    if (!replaying_) return std::string();
    return Open(*replaying_, config_.replay_endpoint, "replay_endpoint", /*is_ours=*/true);
  }

  // The next batch.
  void Send(const std::string& payload) {
    const Seq seq = BigEndian(next_);
    zmq::message_t message(payload.data(), payload.size());
    if (replaying_) Remember(message);
    ++next_;
    // These never wait: a subscriber whose queue is full does not get the batch.
    publishing_.send(zmq::buffer(config_.topic), zmq::send_flags::sndmore);
    publishing_.send(zmq::buffer(seq), zmq::send_flags::sndmore);
    publishing_.send(message, zmq::send_flags::none);
  }

  // Until something comes, or the time is up (negative: for ever).
  void Wait(int wake_fd, std::chrono::milliseconds time) {
    std::array<zmq::pollitem_t, 2> items = {{{nullptr, wake_fd, ZMQ_POLLIN, 0}, {}}};
    if (replaying_) items[1] = {replaying_->handle(), 0, ZMQ_POLLIN, 0};
    zmq::poll(items.data(), replaying_ ? 2 : 1, time);
    uint64_t count = 0;
    if ((items[0].revents & ZMQ_POLLIN) != 0 && read(wake_fd, &count, sizeof(count)) < 0) {
      spdlog::debug("KV events: {}", std::strerror(errno));  // Nothing was there to be read.
    }
  }

  // Answers clients as far as they take it; true: some of them must be waited for.
  bool Replay() {
    if (!replaying_) return false;
    TakeRequests();
    std::erase_if(replays_, [&](Request& request) { return Answer(request); });
    return !replays_.empty();
  }

 private:
  struct Batch {
    uint64_t seq = 0;
    zmq::message_t payload;
  };
  struct Request {
    std::string client;
    uint64_t next = 0;
  };

  Result<std::string> Open(zmq::socket_t& socket, const std::string& endpoint, const char* key,
                           bool is_ours) {
    try {
      if (endpoint.find('[') != std::string::npos) socket.set(zmq::sockopt::ipv6, true);
      if (!is_ours) {
        socket.connect(endpoint);
        return endpoint;
      }
      socket.bind(endpoint);
      return socket.get(zmq::sockopt::last_endpoint);
    } catch (const zmq::error_t& error) {
      return MakeError("--kv-events-config: {} {}: {}", key, endpoint, error.what());
    }
  }

  void Remember(zmq::message_t& message) {
    Batch& batch = batches_.emplace_back();
    batch.seq = next_;
    batch.payload.copy(message);  // Shares its bytes.
    num_bytes_ += batch.payload.size();
    while (std::ssize(batches_) > config_.buffer_steps || num_bytes_ > kMaxReplayBytes) {
      num_bytes_ -= batches_.front().payload.size();
      batches_.pop_front();
    }
  }

  void TakeRequests() {
    while (true) {
      std::vector<zmq::message_t> frames;
      for (bool has_more = true; has_more;) {
        zmq::message_t frame;
        if (!replaying_->recv(frame, zmq::recv_flags::dontwait)) return;
        has_more = frame.more();
        if (frames.size() < 4) frames.push_back(std::move(frame));  // More are too many.
      }
      const bool is_request = frames.size() == 3 && frames[1].size() == 0 && frames[2].size() == 8;
      if (!is_request || std::ssize(replays_) >= kMaxReplays) {
        Warn(is_request ? "a replay was refused: too many are under way"
                        : "a replay was refused: a request is an empty frame and the number of the "
                          "first batch as 8 bytes");
        continue;
      }
      Request& request = replays_.emplace_back();
      request.client = frames[0].to_string();
      for (size_t idx = 0; idx < 8; ++idx) {
        request.next = request.next << 8 | frames[2].data<uint8_t>()[idx];
      }
    }
  }

  void Warn(const char* message) {
    const auto line = refused_.Next(message, LimitedWarning::Clock::now());
    if (line) spdlog::warn("KV events: {}", *line);
  }

  // True: it is over.
  bool Answer(Request& request) {
    for (int turn = 0; turn < kMaxReplayTurn; ++turn) {
      const auto batch = std::ranges::lower_bound(batches_, request.next, {}, &Batch::seq);
      const bool is_end = batch == batches_.end();
      try {
        const auto sent =
            is_end ? SendTo(request.client, "", BigEndian(UINT64_MAX), nullptr)
                   : SendTo(request.client, config_.topic, BigEndian(batch->seq), &batch->payload);
        if (!sent) return false;
      } catch (const zmq::error_t&) {
        return true;  // The client has gone.
      }
      if (is_end) return true;
      request.next = batch->seq + 1;
    }
    return false;
  }

  bool SendTo(const std::string& client, const std::string& topic, const Seq& seq,
              zmq::message_t* payload) {
    // Where the first frame goes, all of them do.
    constexpr auto kMore = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
    if (!replaying_->send(zmq::buffer(client), kMore)) return false;
    replaying_->send(zmq::message_t(), kMore);
    replaying_->send(zmq::buffer(topic), kMore);
    replaying_->send(zmq::buffer(seq), kMore);
    zmq::message_t last;
    if (payload != nullptr) last.copy(*payload);
    replaying_->send(last, zmq::send_flags::dontwait);
    return true;
  }

  const KvEventsConfig& config_;
  zmq::context_t context_;
  zmq::socket_t publishing_;
  std::optional<zmq::socket_t> replaying_;
  uint64_t next_ = 0;
  std::deque<Batch> batches_;
  size_t num_bytes_ = 0;  // of them
  std::vector<Request> replays_;
  LimitedWarning refused_;
};

KvEventPublisher::KvEventPublisher(const KvEventsConfig& config) : config_(config) {}

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::Open(const KvEventsConfig& config) {
  std::unique_ptr<KvEventPublisher> publisher(new KvEventPublisher(config));
  publisher->sockets_ = std::make_unique<Sockets>(publisher->config_);
  ASSIGN_OR_RETURN(publisher->endpoint_, publisher->sockets_->OpenPublishing());
  ASSIGN_OR_RETURN(publisher->replay_endpoint_, publisher->sockets_->OpenReplaying());
  publisher->wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (publisher->wake_fd_ < 0) return MakeError("KV events: {}", std::strerror(errno));
  publisher->changes_.set_wake([self = publisher.get()] { self->Wake(); });
  return publisher;
}

KvEventPublisher::~KvEventPublisher() {
  if (thread_.joinable()) {
    stopping_ = true;
    Wake();
    thread_.join();
  }
  if (wake_fd_ >= 0) close(wake_fd_);
}

void KvEventPublisher::Start(const ModelPlan& plan, const KvLayout& layout) {
  plan_.emplace(plan);
  layout_.emplace(layout);
  thread_ = std::thread([this] { Loop(); });
}

void KvEventPublisher::Wake() const {
  const uint64_t one = 1;
  // It fails only where it is signalled already.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void KvEventPublisher::Loop() {
  blocks_.emplace(*plan_, *layout_);
  bool must_clear = true;
  while (true) {
    const bool is_last = stopping_;
    bool has_more = true;
    bool has_published = false;
    try {
      if (must_clear) {
        const BlockEvent cleared{.kind = BlockEvent::Kind::kCleared};
        Publish({&cleared, 1});
        must_clear = false;
      }
      has_published = PublishChanges();
      has_more = sockets_->Replay();
    } catch (const zmq::error_t& error) {
      spdlog::error("KV events: {}", error.what());
      return;
    } catch (const std::bad_alloc&) {
      // What was being taken is lost, so no block can be counted on.
      blocks_.emplace(*plan_, *layout_);
      must_clear = true;
    }
    if (is_last) return;
    constexpr std::chrono::milliseconds kForEver{-1};
    sockets_->Wait(wake_fd_, has_published ? kGatherTime : has_more ? kReplayPause : kForEver);
  }
}

bool KvEventPublisher::PublishChanges() {
  if (!changes_.Take(&taken_)) return false;
  const std::vector<BlockEvent> events = blocks_->Apply(taken_);
  if (!events.empty()) Publish(events);
  const uint64_t num_losses = changes_.num_losses();
  if (num_losses != num_losses_told_) {
    num_losses_told_ = num_losses;
    spdlog::warn("KV events: too much has changed at once: what is cached now is not announced");
  }
  return true;
}

void KvEventPublisher::Publish(std::span<const BlockEvent> events) {
  sockets_->Send(EncodeKvEvents(SecondsSince1970(), events, layout_->tokens_per_page[kFullGroup]));
}

}  // namespace lapidary
