#include "server/trace_exporter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace lapidary {
namespace {

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParent[] = "00f067aa0ba902b7";

std::string Header(const std::string& version, const std::string& flags) {
  return version + "-" + kTrace + "-" + kParent + "-" + flags;
}

TEST(TraceParent, IsReadAsTheStandardSays) {
  const auto parent = TraceParent::Parse(Header("00", "01"));
  ASSERT_TRUE(parent.has_value());
  EXPECT_EQ(parent->trace_id, kTrace);
  EXPECT_EQ(parent->parent_id, kParent);
  EXPECT_TRUE(parent->is_sampled);
  EXPECT_FALSE(TraceParent::Parse(Header("00", "02"))->is_sampled);
  EXPECT_TRUE(TraceParent::Parse(Header("01", "0b") + "-more")->is_sampled);
  const std::string zeros(32, '0');
  for (const std::string& wrong :
       {std::string(), std::string("00"), Header("ff", "01"), Header("00", "0G"),
        Header("00", "01") + "-more", Header("01", "01") + "more",
        "00-" + zeros + "-" + kParent + "-01", std::string("00-") + kTrace + "-0000000000000000-01",
        Header("0A", "01")}) {
    EXPECT_FALSE(TraceParent::Parse(wrong).has_value()) << wrong;
  }
}

TEST(TraceExporter, ARequestHasASpanAndBelowItThoseOfItsRun) {
  AccessRecord access;
  access.id = "req-1";
  access.method = "POST";
  access.path = "/v1/chat/completions";
  access.status = 200;
  access.is_complete = true;
  access.seconds = 2.0;
  access.prompt_tokens = 30;
  access.completion_tokens = 7;
  access.run = AccessRecord::Run{100.0, 300.0, 1500.0, 9'950'000'000};
  const auto parent = TraceParent::Parse(Header("00", "01"));
  const OrderedJson spans = SpansOf(access, &*parent, "pebble", 10'000'000'000);
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[0]["name"], "POST /v1/chat/completions");
  EXPECT_EQ(spans[0]["parentSpanId"], kParent);
  EXPECT_EQ(spans[0]["kind"], 2);
  EXPECT_EQ(spans[0]["startTimeUnixNano"], "8000000000");
  EXPECT_EQ(spans[0]["endTimeUnixNano"], "10000000000");
  EXPECT_FALSE(spans[0].contains("status"));
  const OrderedJson tokens = {{"key", "gen_ai.usage.output_tokens"},
                              {"value", {{"intValue", "7"}}}};
  const OrderedJson& attributes = spans[0]["attributes"];
  EXPECT_NE(std::find(attributes.begin(), attributes.end(), tokens), attributes.end());
  std::set<std::string> ids;
  for (const OrderedJson& span : spans) {
    EXPECT_EQ(span["traceId"], kTrace);
    ids.insert(span["spanId"].get<std::string>());
  }
  EXPECT_EQ(ids.size(), 4u);
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"decode", "8450000000"}, {"prefill", "8150000000"}, {"queue", "8050000000"}};
  for (size_t idx = 0; idx < expected.size(); ++idx) {
    EXPECT_EQ(spans[idx + 1]["name"], expected[idx].first);
    EXPECT_EQ(spans[idx + 1]["startTimeUnixNano"], expected[idx].second);
    EXPECT_EQ(spans[idx + 1]["parentSpanId"], spans[0]["spanId"]);
  }
}

TEST(TraceExporter, ARequestThatFailedSaysSoAndBeginsATraceOfItsOwn) {
  AccessRecord access;
  access.method = "GET";
  access.path = "/v1/models";
  access.status = 503;
  access.error_code = "queue_full";
  const OrderedJson spans = SpansOf(access, nullptr, "pebble", 10);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_FALSE(spans[0].contains("parentSpanId"));
  EXPECT_EQ(spans[0]["traceId"].get<std::string>().size(), 32u);
  EXPECT_EQ(spans[0]["status"]["code"], 2);
}

TEST(TraceExporter, ItsEndpointIsAUrl) {
  EXPECT_TRUE(TraceExporter::CheckEndpoint("").ok());
  EXPECT_TRUE(TraceExporter::CheckEndpoint("http://localhost:4318/v1/traces").ok());
  EXPECT_FALSE(TraceExporter::CheckEndpoint("grpc://localhost:4317").ok());
  EXPECT_FALSE(TraceExporter::CheckEndpoint("localhost").ok());
}

// Nobody listens there: requests do not wait, and neither does the end.
TEST(TraceExporter, ACollectorThatIsGoneHoldsNobodyUp) {
  TraceExporter exporter("http://127.0.0.1:1/v1/traces", "pebble");
  AccessRecord access;
  for (size_t idx = 0; idx < 2 * TraceExporter::kMaxQueued; ++idx) exporter.Add(access);
}

}  // namespace
}  // namespace lapidary
