#include "bench/serve_result.h"

#include <algorithm>
#include <cmath>

#include "bench/statistics.h"

namespace lapidary::bench {
namespace {

constexpr int kWidth = 50;

std::vector<ServeMetric> NoMetrics() {
  return {{"ttft", "TTFT", "Time to First Token", {}},
          {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", {}},
          {"itl", "ITL", "Inter-token Latency", {}},
          {"e2el", "E2EL", "End-to-end Latency", {}},
          {"client_queue_time", "Client Queue Time", "Client-side Queueing", {}},
          {"e2el_including_client_queue",
           "E2EL incl. Client Queue",
           "Queue-inclusive End-to-end Latency",
           {}}};
}

double PeakTokensPerSecond(std::span<const RequestRecord> records) {
  std::vector<double> per_second;
  const auto count = [&](double at) {
    const size_t second = static_cast<size_t>(std::max(at, 0.0));
    if (second >= per_second.size()) per_second.resize(second + 1, 0.0);
    per_second[second] += 1.0;
  };
  for (const RequestRecord& record : records) {
    if (!record.success) continue;
    double at = record.start + record.ttft;
    count(at);
    for (const double gap : record.itls) count(at += gap);
  }
  return per_second.empty() ? 0.0 : *std::max_element(per_second.begin(), per_second.end());
}

int PeakConcurrency(std::span<const RequestRecord> records) {
  std::vector<std::pair<double, int>> changes;  // at equal times, ends sort before starts
  for (const RequestRecord& record : records) {
    if (!record.success) continue;
    changes.emplace_back(record.start, 1);
    changes.emplace_back(record.start + record.latency, -1);
  }
  std::sort(changes.begin(), changes.end());
  int now = 0;
  int peak = 0;
  for (const auto& [at, change] : changes) peak = std::max(peak, now += change);
  return peak;
}

// Of a request of more than one token.
double TimePerToken(const RequestRecord& record) {
  return (record.latency - record.ttft) / static_cast<double>(record.output_tokens - 1);
}

bool KeepsGoals(const RequestRecord& record, const std::vector<Goal>& goals) {
  return std::all_of(goals.begin(), goals.end(), [&](const Goal& goal) {
    const double seconds = goal.metric == "ttft"      ? record.ttft
                           : goal.metric == "e2el"    ? record.latency
                           : record.output_tokens > 1 ? TimePerToken(record)
                                                      : 0.0;
    return 1e3 * seconds <= goal.max_ms;
  });
}

bool Has(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// 99 -> "99", 99.9 -> "99.9"
std::string PercentWord(double percent) { return fmt::format("{:g}", percent); }

std::string Line(const std::string& label, int64_t value) {
  return fmt::format("{:<40} {:<10}\n", label, value);
}
std::string Line(const std::string& label, double value) {
  return fmt::format("{:<40} {:<10.2f}\n", label, value);
}

}  // namespace

std::vector<std::string> ServeMetricKeys() {
  std::vector<std::string> keys;
  for (const ServeMetric& metric : NoMetrics()) keys.push_back(metric.key);
  return keys;
}

ServeResult MakeServeResult(std::span<const RequestRecord> records, double duration_s,
                            const std::vector<Goal>& goals) {
  ServeResult result;
  if (!goals.empty()) {
    result.num_good = static_cast<int>(std::count_if(
        records.begin(), records.end(),
        [&](const RequestRecord& record) { return record.success && KeepsGoals(record, goals); }));
  }
  result.duration_s = duration_s;
  result.metrics = NoMetrics();
  const auto add = [&](std::string_view key, double seconds) {
    for (ServeMetric& metric : result.metrics) {
      if (metric.key == key) metric.values_ms.push_back(1e3 * seconds);
    }
  };
  for (const RequestRecord& record : records) {
    if (!record.success) {
      ++result.failed;
      continue;
    }
    ++result.completed;
    result.total_input_tokens += record.prompt_tokens;
    result.total_output_tokens += record.output_tokens;
    const double queue_time = record.start - record.arrival;
    add("ttft", record.ttft);
    if (record.output_tokens > 1) add("tpot", TimePerToken(record));
    for (const double gap : record.itls) add("itl", gap);
    add("e2el", record.latency);
    add("client_queue_time", queue_time);
    add("e2el_including_client_queue", queue_time + record.latency);
  }
  result.max_output_tokens_per_s = PeakTokensPerSecond(records);
  result.max_concurrent_requests = PeakConcurrency(records);
  return result;
}

std::string ServeReport(const ServeResult& result, const ReportOptions& options) {
  std::string text = fmt::format("{:=^{}}\n", " Serving Benchmark Result ", kWidth);
  text += Line("Successful requests:", int64_t{result.completed});
  text += Line("Failed requests:", int64_t{result.failed});
  if (options.max_concurrency) {
    text += Line("Maximum request concurrency:", int64_t{*options.max_concurrency});
  }
  if (!std::isinf(options.request_rate)) {
    text += Line("Request rate configured (RPS):", options.request_rate);
  }
  const double output_tokens = static_cast<double>(result.total_output_tokens);
  const double input_tokens = static_cast<double>(result.total_input_tokens);
  text += Line("Benchmark duration (s):", result.duration_s);
  text += Line("Total input tokens:", result.total_input_tokens);
  text += Line("Total generated tokens:", result.total_output_tokens);
  text += Line("Request throughput (req/s):", result.PerSecond(result.completed));
  if (result.num_good) {
    text += Line("Request goodput (req/s):", result.PerSecond(*result.num_good));
  }
  text += Line("Output token throughput (tok/s):", result.PerSecond(output_tokens));
  text += Line("Peak output token throughput (tok/s):", result.max_output_tokens_per_s);
  text += Line("Peak concurrent requests:", static_cast<double>(result.max_concurrent_requests));
  text += Line("Total token throughput (tok/s):", result.PerSecond(input_tokens + output_tokens));
  for (const ServeMetric& metric : result.metrics) {
    if (!Has(options.metrics, metric.key)) continue;
    text += fmt::format("{:-^{}}\n", metric.title, kWidth);
    text += Line(fmt::format("Mean {} (ms):", metric.name), Mean(metric.values_ms));
    text += Line(fmt::format("Median {} (ms):", metric.name), Median(metric.values_ms));
    for (const double percent : options.percentiles) {
      text += Line(fmt::format("P{} {} (ms):", PercentWord(percent), metric.name),
                   Percentile(metric.values_ms, percent));
    }
  }
  return text + std::string(kWidth, '=') + "\n";
}

OrderedJson ServeResultJson(const ServeResult& result, const ReportOptions& options) {
  const double output_tokens = static_cast<double>(result.total_output_tokens);
  const double input_tokens = static_cast<double>(result.total_input_tokens);
  OrderedJson json = {
      {"duration", result.duration_s},
      {"completed", result.completed},
      {"failed", result.failed},
      {"total_input_tokens", result.total_input_tokens},
      {"total_output_tokens", result.total_output_tokens},
      {"request_throughput", result.PerSecond(result.completed)},
      {"output_throughput", result.PerSecond(output_tokens)},
      {"total_token_throughput", result.PerSecond(input_tokens + output_tokens)},
      {"max_output_tokens_per_s", result.max_output_tokens_per_s},
      {"max_concurrent_requests", result.max_concurrent_requests},
  };
  if (result.num_good) json["request_goodput"] = result.PerSecond(*result.num_good);
  for (const ServeMetric& metric : result.metrics) {
    if (!Has(options.metrics, metric.key)) continue;
    const auto key = [&](const std::string& what) {
      return fmt::format("{}_{}_ms", what, metric.key);
    };
    json[key("mean")] = Mean(metric.values_ms);
    json[key("median")] = Median(metric.values_ms);
    json[key("std")] = StandardDeviation(metric.values_ms);
    for (const double percent : options.percentiles) {
      json[key("p" + PercentWord(percent))] = Percentile(metric.values_ms, percent);
    }
  }
  return json;
}

OrderedJson ServeDetailsJson(std::span<const RequestRecord> records) {
  OrderedJson json;
  for (const char* name : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
                           "queue_times", "generated_texts", "errors"}) {
    json[name] = OrderedJson::array();
  }
  for (const RequestRecord& record : records) {
    json["input_lens"].push_back(record.prompt_tokens);
    json["output_lens"].push_back(record.output_tokens);
    json["ttfts"].push_back(record.ttft);
    json["itls"].push_back(record.itls);
    json["latencies"].push_back(record.latency);
    json["start_times"].push_back(record.start);
    json["queue_times"].push_back(record.start - record.arrival);
    json["generated_texts"].push_back(record.text);
    json["errors"].push_back(record.error);
  }
  return json;
}

}  // namespace lapidary::bench
