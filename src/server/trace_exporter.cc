#include "server/trace_exporter.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>
#include <vector>

#include "base/memory_reserve.h"
#include "base/random_bits.h"
#include "base/version.h"
#include "net/curl.h"
#include "server/answer_format.h"

namespace lapidary {
namespace {

// Requests of one message, and how long they wait for others.
constexpr size_t kMaxBatch = 256;
constexpr std::chrono::milliseconds kBatchTime{1000};
constexpr long kSendSeconds = 5;
constexpr long kLastSendSeconds = 1;

// OTLP's numbers.
constexpr int kInternalSpan = 1;
constexpr int kServerSpan = 2;
constexpr int kErrorStatus = 2;

bool IsHex(std::string_view text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return std::all_of(text.begin(), text.end(), is_digit);
}

bool IsZero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

std::string RandomHex64() { return fmt::format("{:016x}", RandomBits() | 1); }

OrderedJson TextAttribute(const char* key, const std::string& value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}

// 64-bit integers are texts in OTLP's JSON.
OrderedJson IntAttribute(const char* key, int64_t value) {
  return {{"key", key}, {"value", {{"intValue", std::to_string(value)}}}};
}

OrderedJson Span(const std::string& trace_id, const std::string& parent_id, const std::string& name,
                 int kind, int64_t begin, int64_t end) {
  OrderedJson span = {{"traceId", trace_id}, {"spanId", RandomHex64()}};
  if (!parent_id.empty()) span["parentSpanId"] = parent_id;
  span["name"] = name;
  span["kind"] = kind;
  span["startTimeUnixNano"] = std::to_string(begin);
  span["endTimeUnixNano"] = std::to_string(end);
  return span;
}

int64_t Nanoseconds(double ms) { return static_cast<int64_t>(ms * 1e6); }

size_t Discard(char*, size_t size, size_t count, void*) { return size * count; }

struct ListDeleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

}  // namespace

std::optional<TraceParent> TraceParent::Parse(std::string_view header) {
  // 00-TRACE-PARENT-FLAGS; later versions may have more behind it.
  constexpr size_t kLength = 55;
  if (header.size() < kLength || header[2] != '-' || header[35] != '-' || header[52] != '-') {
    return std::nullopt;
  }
  const std::string_view version = header.substr(0, 2);
  const std::string_view trace = header.substr(3, 32);
  const std::string_view parent = header.substr(36, 16);
  const std::string_view flags = header.substr(53, 2);
  const bool has_right_length =
      header.size() == kLength || (version != "00" && header[kLength] == '-');
  const bool is_hex = IsHex(version) && IsHex(trace) && IsHex(parent) && IsHex(flags);
  if (!has_right_length || !is_hex || version == "ff" || IsZero(trace) || IsZero(parent)) {
    return std::nullopt;
  }
  const char last = flags[1];
  const int digit = last <= '9' ? last - '0' : last - 'a' + 10;
  return TraceParent{std::string(trace), std::string(parent), digit % 2 == 1};
}

OrderedJson SpansOf(const AccessRecord& access, const TraceParent* parent,
                    const std::string& model_name, int64_t end) {
  const std::string trace_id = parent == nullptr ? RandomHex64() + RandomHex64() : parent->trace_id;
  const int64_t begin = end - Nanoseconds(access.seconds * 1e3);
  OrderedJson request = Span(trace_id, parent == nullptr ? "" : parent->parent_id,
                             access.method + " " + access.path, kServerSpan, begin, end);
  OrderedJson attributes = OrderedJson::array();
  attributes.push_back(TextAttribute("http.request.method", access.method));
  attributes.push_back(TextAttribute("url.path", access.path));
  attributes.push_back(IntAttribute("http.response.status_code", access.status));
  attributes.push_back(TextAttribute("http.request.header.x-request-id", access.id));
  if (access.prompt_tokens > 0) {
    attributes.push_back(TextAttribute("gen_ai.request.model", model_name));
    attributes.push_back(IntAttribute("gen_ai.usage.input_tokens", access.prompt_tokens));
    attributes.push_back(IntAttribute("gen_ai.usage.output_tokens", access.completion_tokens));
  }
  if (!access.error_code.empty()) {
    attributes.push_back(TextAttribute("error.type", access.error_code));
  }
  request["attributes"] = std::move(attributes);
  if (access.status >= 500 || access.status == 0 || !access.is_complete) {
    request["status"] = {{"code", kErrorStatus}};
  }
  const std::string request_id = request["spanId"];
  OrderedJson spans = OrderedJson::array({std::move(request)});
  if (!access.run) return spans;
  int64_t at = access.run->end_nanoseconds;
  const auto add_before = [&](const char* name, double ms) {
    const int64_t span_begin = std::max(at - Nanoseconds(ms), begin);
    spans.push_back(Span(trace_id, request_id, name, kInternalSpan, span_begin, at));
    at = span_begin;
  };
  add_before("decode", access.run->decode_ms);
  add_before("prefill", access.run->prefill_ms);
  add_before("queue", access.run->queue_ms);
  return spans;
}

Status TraceExporter::CheckEndpoint(const std::string& endpoint) {
  if (endpoint.empty()) return {};
  const std::optional<net::Url> url = net::Url::Parse(endpoint);
  if (url && (url->Scheme() == "http" || url->Scheme() == "https")) return {};
  return MakeError(
      "--otlp-traces-endpoint '{}': a collector's URL looks like "
      "http://localhost:4318/v1/traces",
      endpoint);
}

TraceExporter::TraceExporter(std::string endpoint, std::string model_name)
    : endpoint_(std::move(endpoint)), model_name_(std::move(model_name)) {
  thread_ = std::thread([this] { Loop(); });
}

TraceExporter::~TraceExporter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TraceExporter::Add(const AccessRecord& access) {
  const std::optional<TraceParent> parent = TraceParent::Parse(access.traceparent);
  if (parent && !parent->is_sampled) return;
  OrderedJson spans = SpansOf(access, parent ? &*parent : nullptr, model_name_, UnixNanoseconds());
  {
    const std::lock_guard lock(mutex_);
    if (spans_.size() >= kMaxQueued) {
      ++num_lost_;
      return;
    }
    spans_.push_back(std::move(spans));
  }
  changed_.notify_one();
}

void TraceExporter::Loop() {
  const ReserveScope reserve;  // All that is here is small.
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !spans_.empty(); });
    if (spans_.empty()) return;
    changed_.wait_for(lock, kBatchTime, [&] { return stopping_ || spans_.size() >= kMaxBatch; });
    OrderedJson spans = OrderedJson::array();
    size_t num_requests = 0;
    for (; num_requests < kMaxBatch && !spans_.empty(); ++num_requests, spans_.pop_front()) {
      for (OrderedJson& span : spans_.front()) spans.push_back(std::move(span));
    }
    const bool is_last_try = stopping_;
    lock.unlock();
    bool is_sent = false;
    try {
      OrderedJson scope = {{"scope", {{"name", "lapidary"}, {"version", kVersion}}},
                           {"spans", std::move(spans)}};
      const OrderedJson service = OrderedJson::array({TextAttribute("service.name", "lapidary")});
      const OrderedJson message = {
          {"resourceSpans",
           OrderedJson::array({{{"resource", {{"attributes", service}}},
                                {"scopeSpans", OrderedJson::array({std::move(scope)})}}})}};
      is_sent = Send(DumpJson(message), is_last_try ? kLastSendSeconds : kSendSeconds);
    } catch (const std::bad_alloc&) {  // These spans are lost, then.
    }
    lock.lock();
    if (!is_sent) num_lost_ += num_requests;
    if (num_lost_ > 0) {
      const auto line =
          failed_.Next(fmt::format("spans of {} requests were lost: {} does not take them",
                                   num_lost_, endpoint_),
                       LimitedWarning::Clock::now());
      if (line) spdlog::warn("{}", *line);
      num_lost_ = 0;
    }
    if (is_last_try && !is_sent) return;
  }
}

bool TraceExporter::Send(const std::string& body, long max_seconds) const {
  const std::optional<net::Url> url = net::Url::Parse(endpoint_);
  const net::Easy easy = net::MakeEasy();
  net::SetCommonOptions(easy, *url);
  const std::unique_ptr<curl_slist, ListDeleter> headers(
      curl_slist_append(nullptr, "Content-Type: application/json"));
  net::Set(easy, CURLOPT_HTTPHEADER, headers.get());
  net::Set(easy, CURLOPT_POSTFIELDS, body.c_str());
  net::Set(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  net::Set(easy, CURLOPT_WRITEFUNCTION, &Discard);
  net::Set(easy, CURLOPT_TIMEOUT, max_seconds);
  if (curl_easy_perform(easy.get()) != CURLE_OK) return false;
  long status = 0;
  curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
  return status >= 200 && status < 300;
}

}  // namespace lapidary
