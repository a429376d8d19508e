#include "bench/serve_result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace lapidary::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

RequestRecord Record(double start, double ttft, std::vector<double> itls, int64_t prompt_tokens) {
  RequestRecord record;
  record.success = true;
  record.start = start;
  record.ttft = ttft;
  record.latency = ttft;
  for (const double gap : itls) record.latency += gap;
  record.output_tokens = 1 + std::ssize(itls);
  record.itls = std::move(itls);
  record.prompt_tokens = prompt_tokens;
  return record;
}

std::vector<RequestRecord> Records() {
  std::vector<RequestRecord> records = {Record(0.0, 0.5, {0.1, 0.3}, 10),
                                        Record(0.25, 1.5, {}, 30)};
  records[1].arrival = 0.05;
  RequestRecord failed;
  failed.error = "HTTP 503";
  failed.prompt_tokens = 1000;
  failed.output_tokens = 5;
  records.push_back(failed);
  return records;
}

ReportOptions Options() {
  ReportOptions options;
  options.request_rate = std::numeric_limits<double>::infinity();
  return options;
}

TEST(ServeResult, CountsWhatSucceededAndOnlyThat) {
  const ServeResult result = MakeServeResult(Records(), 2.0);
  EXPECT_EQ(result.completed, 2);
  EXPECT_EQ(result.failed, 1);
  EXPECT_EQ(result.total_input_tokens, 40);
  EXPECT_EQ(result.total_output_tokens, 4);
  EXPECT_EQ(result.max_concurrent_requests, 2);
  EXPECT_EQ(result.max_output_tokens_per_s, 3);
}

TEST(ServeResult, GoodRequestsKeepAllGoals) {
  const auto num_good = [](const std::vector<Goal>& goals) {
    return MakeServeResult(Records(), 2.0, goals).num_good;
  };
  EXPECT_FALSE(num_good({}).has_value());
  EXPECT_EQ(num_good({{"ttft", 2000.0}}), 2) << "a failed one is none";
  EXPECT_EQ(num_good({{"ttft", 600.0}}), 1);
  EXPECT_EQ(num_good({{"ttft", 600.0}, {"tpot", 150.0}}), 0) << "the first takes 200 ms a token";
  EXPECT_EQ(num_good({{"tpot", 150.0}}), 1) << "one of a single token has no time per token";
  EXPECT_EQ(num_good({{"e2el", 1000.0}}), 1);
  const ServeResult result = MakeServeResult(Records(), 2.0, {{"ttft", 600.0}});
  EXPECT_EQ(ServeResultJson(result, Options())["request_goodput"], 0.5);
  EXPECT_THAT(ServeReport(result, Options()), HasSubstr("Request goodput (req/s):"));
}

TEST(ServeResult, HasTheKeysOfVllm) {
  ReportOptions options = Options();
  options.percentiles = {50, 99.9};
  options.metrics = ServeMetricKeys();
  const OrderedJson json = ServeResultJson(MakeServeResult(Records(), 2.0), options);
  EXPECT_EQ(json["duration"], 2.0);
  EXPECT_EQ(json["request_throughput"], 1.0);
  EXPECT_EQ(json["output_throughput"], 2.0);
  EXPECT_EQ(json["total_token_throughput"], 22.0);
  EXPECT_EQ(json["mean_ttft_ms"], 1000.0);
  EXPECT_EQ(json["std_ttft_ms"], 500.0);
  EXPECT_DOUBLE_EQ(json["mean_tpot_ms"].get<double>(), 200.0);  // a single token has none
  EXPECT_DOUBLE_EQ(json["median_itl_ms"].get<double>(), 200.0);
  EXPECT_DOUBLE_EQ(json["p99.9_itl_ms"].get<double>(), 299.8);
  EXPECT_DOUBLE_EQ(json["p50_e2el_ms"].get<double>(), 1200.0);
  EXPECT_DOUBLE_EQ(json["mean_client_queue_time_ms"].get<double>(), 100.0);
}

TEST(ServeResult, PrintsTheBlockOfVllm) {
  const std::string text = ServeReport(MakeServeResult(Records(), 2.0), Options());
  EXPECT_THAT(text, HasSubstr("============ Serving Benchmark Result ============\n"
                              "Successful requests:                     2         \n"
                              "Failed requests:                         1         \n"));
  EXPECT_THAT(text, HasSubstr("Total generated tokens:                  4         \n"));
  EXPECT_THAT(text, HasSubstr("Output token throughput (tok/s):         2.00      \n"));
  EXPECT_THAT(text, HasSubstr("---------------Time to First Token----------------\n"
                              "Mean TTFT (ms):                          1000.00   \n"));
  EXPECT_THAT(text, HasSubstr("-----Time per Output Token (excl. 1st token)------\n"));
  EXPECT_THAT(text, HasSubstr("P99 ITL (ms):                            298.00    \n"));
  EXPECT_THAT(text, Not(HasSubstr("E2EL")));
  EXPECT_THAT(text, Not(HasSubstr("Request rate")));
}

TEST(ServeResult, OfNothingIsAllZero) {
  const OrderedJson json = ServeResultJson(MakeServeResult({}, 0.0), Options());
  EXPECT_EQ(json["output_throughput"], 0.0);
  EXPECT_EQ(json["p99_ttft_ms"], 0.0);
}

TEST(ServeDetails, HaveAnEntryForEveryRequest) {
  const OrderedJson json = ServeDetailsJson(Records());
  for (const auto& [name, list] : json.items()) EXPECT_EQ(list.size(), 3u) << name;
  EXPECT_EQ(json["errors"][2], "HTTP 503");
}

}  // namespace
}  // namespace lapidary::bench
