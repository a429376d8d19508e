// Spans of requests, sent to an OpenTelemetry collector: OTLP over HTTP, as JSON.
//
//   request (server) ............................................
//     | queue | prefill | decode ......................... |
//
// A request belongs to the trace that its `traceparent` names, and is left out if that says so.
// What is sent has a queue with a bound and a thread of its own: where the collector is slow or
// gone, spans are lost and nothing waits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/result.h"
#include "server/http_types.h"
#include "server/limited_warning.h"

namespace lapidary {

// The trace that a request belongs to, by its W3C traceparent.
struct TraceParent {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16
  bool is_sampled = false;

  // Nothing where it is none.
  static std::optional<TraceParent> Parse(std::string_view header);
};

class TraceExporter {
 public:
  static constexpr size_t kMaxQueued = 4096;  // requests

  // An error where it is neither empty nor an http(s) URL, as http://localhost:4318/v1/traces is.
  static Status CheckEndpoint(const std::string& endpoint);

  // `endpoint` was checked and is not empty.
  TraceExporter(std::string endpoint, std::string model_name);
  // Sends what waits, for a second at most.
  ~TraceExporter();
  TraceExporter(const TraceExporter&) = delete;
  TraceExporter& operator=(const TraceExporter&) = delete;

  // A request that is over now. From any thread; never waits.
  void Add(const AccessRecord& access);

 private:
  void Loop();
  // False: the collector did not take it.
  bool Send(const std::string& body, long max_seconds) const;

  const std::string endpoint_;
  const std::string model_name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<OrderedJson> spans_;  // lists, one of each request
  uint64_t num_lost_ = 0;
  bool stopping_ = false;
  LimitedWarning failed_;
  std::thread thread_;
};

// A request's spans: its own, and those of its way through the engine if it went there. `end`:
// nanoseconds since 1970.
OrderedJson SpansOf(const AccessRecord& access, const TraceParent* parent,
                    const std::string& model_name, int64_t end);

}  // namespace lapidary
