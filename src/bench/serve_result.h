// From the records of a run against a server to the result, as text and as JSON. Lines and keys
// are those of `vllm bench serve`, so that its plots and scripts read ours.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "bench/completion_stream.h"

namespace lapidary::bench {

using OrderedJson = nlohmann::ordered_json;

// A distribution in milliseconds under its short name: ttft, tpot, itl, e2el, client_queue_time,
// e2el_including_client_queue.
struct ServeMetric {
  const char* key;
  const char* name;   // "TTFT"
  const char* title;  // "Time to First Token"
  std::vector<double> values_ms;
};

// What a request must keep to be a good one: a metric of it (ttft, tpot or e2el) at most so long.
struct Goal {
  std::string metric;
  double max_ms = 0.0;
};

struct ServeResult {
  double duration_s = 0.0;
  int completed = 0;
  int failed = 0;
  int64_t total_input_tokens = 0;  // of the completed requests, as all below
  int64_t total_output_tokens = 0;
  double max_output_tokens_per_s = 0.0;  // in any second of the run
  int max_concurrent_requests = 0;
  std::optional<int> num_good;  // requests that kept all goals, if there are any
  std::vector<ServeMetric> metrics;

  double PerSecond(double amount) const { return duration_s > 0.0 ? amount / duration_s : 0.0; }
};

ServeResult MakeServeResult(std::span<const RequestRecord> records, double duration_s,
                            const std::vector<Goal>& goals = {});

// Names of metrics that --percentile-metrics may hold.
std::vector<std::string> ServeMetricKeys();

struct ReportOptions {
  std::vector<std::string> metrics = {"ttft", "tpot", "itl"};
  std::vector<double> percentiles = {99.0};
  std::optional<int> max_concurrency;
  double request_rate = 0.0;  // infinity: all at once
};

std::string ServeReport(const ServeResult& result, const ReportOptions& options);
// Only numbers of the whole run.
OrderedJson ServeResultJson(const ServeResult& result, const ReportOptions& options);
// Lists with an entry for every request, for --save-detailed.
OrderedJson ServeDetailsJson(std::span<const RequestRecord> records);

}  // namespace lapidary::bench
