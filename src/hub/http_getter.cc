#include "hub/http_getter.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace lapidary::hub {
namespace {

using net::Set;

constexpr int kMaxRedirects = 10;
constexpr long kConnectSeconds = 10;
// Slower than this for HubSettings::timeout, a transfer is given up (and gone on with later).
constexpr long kLeastBytesPerSecond = 512;
constexpr size_t kMaxHeaderLength = 4096;
constexpr int kMaxRetryAfter = 30;

struct ListDeleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

// A transfer under way, as libcurl's callbacks see it.
struct Transfer {
  CURL* easy;
  std::optional<ByteRange> range;
  int64_t file_bytes;
  int64_t max_bytes;
  const HttpGetter::Sink& sink;
  const std::atomic<bool>& cancelled;
  HttpAnswer& answer;
  bool has_begun = false;  // the answer's head was looked at
  bool is_wanted = false;  // and its body is what was asked for
};

std::string HeaderOf(CURL* easy, const char* name) {
  curl_header* header = nullptr;
  if (curl_easy_header(easy, name, 0, CURLH_HEADER, -1, &header) != CURLHE_OK) return {};
  return std::string(header->value).substr(0, kMaxHeaderLength);
}

// "bytes 0-99/1000" is the range of that file.
bool IsRangeOf(const std::string& content_range, const ByteRange& range, int64_t file_bytes) {
  return content_range == fmt::format("bytes {}-{}/{}", range.begin, range.end - 1, file_bytes);
}

// Whether the body that now begins is what was asked for; else says in the answer what it is.
bool LookAtHead(Transfer& transfer) {
  curl_easy_getinfo(transfer.easy, CURLINFO_RESPONSE_CODE, &transfer.answer.status);
  const long status = transfer.answer.status;
  if (!transfer.range) return status == 200;
  if (status == 200) transfer.answer.ignored_range = true;
  if (status != 206) return false;
  const std::string content_range = HeaderOf(transfer.easy, "Content-Range");
  if (IsRangeOf(content_range, *transfer.range, transfer.file_bytes)) return true;
  transfer.answer.problem = fmt::format(
      "it sends another part of the file than it was asked for ({})", content_range.substr(0, 80));
  return false;
}

size_t Receive(const char* data, size_t size, size_t count, void* context) {
  Transfer& transfer = *static_cast<Transfer*>(context);
  const size_t num_bytes = size * count;
  if (!transfer.has_begun) {
    transfer.has_begun = true;
    transfer.is_wanted = LookAtHead(transfer);
  }
  HttpAnswer& answer = transfer.answer;
  if (!transfer.is_wanted) {
    // What an error says is let pass, up to a bound, so that its connection can be used again.
    answer.num_bytes += static_cast<int64_t>(num_bytes);
    const bool goes_on = answer.problem.empty() && !answer.ignored_range &&
                         answer.num_bytes < static_cast<int64_t>(kMaxHeaderLength);
    return goes_on ? num_bytes : 0;
  }
  if (static_cast<int64_t>(num_bytes) > transfer.max_bytes - answer.num_bytes) {
    answer.was_too_long = true;
    answer.problem = "it sends more than it was asked for";
    return 0;
  }
  answer.num_bytes += static_cast<int64_t>(num_bytes);
  return transfer.sink({data, num_bytes}) ? num_bytes : 0;
}

int OnProgress(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const Transfer*>(context)->cancelled.load() ? 1 : 0;
}

}  // namespace

HttpGetter::HttpGetter(const HubSettings& settings, const std::atomic<bool>& cancelled)
    : settings_(settings),
      cancelled_(cancelled),
      endpoint_(net::Url::Parse(settings.endpoint)),
      easy_(net::MakeEasy()) {
  CHECK(endpoint_.has_value()) << settings.endpoint;
}

void HttpGetter::GetOnce(const net::Url& url, std::optional<ByteRange> range, int64_t file_bytes,
                         int64_t max_bytes, const Sink& sink, HttpAnswer* answer,
                         std::string* next) {
  curl_easy_reset(easy_.get());
  net::SetCommonOptions(easy_, url);
  Transfer transfer{easy_.get(), range, file_bytes, max_bytes, sink, cancelled_, *answer};
  Set(easy_, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  Set(easy_, CURLOPT_LOW_SPEED_LIMIT, kLeastBytesPerSecond);
  Set(easy_, CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings_.timeout.count()));
  Set(easy_, CURLOPT_WRITEFUNCTION, &Receive);
  Set(easy_, CURLOPT_WRITEDATA, &transfer);
  Set(easy_, CURLOPT_NOPROGRESS, 0L);
  Set(easy_, CURLOPT_XFERINFOFUNCTION, &OnProgress);
  Set(easy_, CURLOPT_XFERINFODATA, &transfer);
  std::unique_ptr<curl_slist, ListDeleter> headers;
  const auto add_header = [&](const std::string& line) {
    headers.reset(curl_slist_append(headers.release(), line.c_str()));
    CHECK(headers != nullptr);
  };
  if (!settings_.token.empty() && url.IsSameOrigin(*endpoint_)) {
    add_header("Authorization: Bearer " + settings_.token);
  }
  // Lengths and sums are those of the bytes as they are.
  add_header("Accept-Encoding: identity");
  Set(easy_, CURLOPT_HTTPHEADER, headers.get());
  std::string range_text;
  if (range) {
    range_text = fmt::format("{}-{}", range->begin, range->end - 1);
    Set(easy_, CURLOPT_RANGE, range_text.c_str());
  }
  const CURLcode code = curl_easy_perform(easy_.get());
  curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &answer->status);
  const bool is_redirect = answer->status >= 300 && answer->status < 400;
  const char* location = nullptr;
  curl_easy_getinfo(easy_.get(), CURLINFO_REDIRECT_URL, &location);
  if (is_redirect && location != nullptr) *next = location;
  const bool is_refusal = answer->status >= 300;  // whose text may have been cut short
  if (code != CURLE_OK && answer->problem.empty() && !is_refusal) {
    answer->problem = cancelled_.load() ? "interrupted" : curl_easy_strerror(code);
  }
  if (answer->status == 0 && answer->problem.empty()) answer->problem = curl_easy_strerror(code);
  answer->error_code = HeaderOf(easy_.get(), "X-Error-Code");
  answer->error_message = HeaderOf(easy_.get(), "X-Error-Message");
  answer->link = HeaderOf(easy_.get(), "Link");
  answer->retry_after =
      std::clamp(std::atoi(HeaderOf(easy_.get(), "Retry-After").c_str()), 0, kMaxRetryAfter);
}

HttpAnswer HttpGetter::Get(const std::string& address, std::optional<ByteRange> range,
                           int64_t file_bytes, int64_t max_bytes, const Sink& sink) {
  HttpAnswer answer;
  std::string current = address;
  for (int num_redirects = 0; num_redirects <= kMaxRedirects; ++num_redirects) {
    answer = {};
    answer.url = current;
    const std::optional<net::Url> url = net::Url::Parse(current);
    const std::string scheme = url ? url->Scheme() : "";
    if (scheme != "https" && !(scheme == "http" && endpoint_->Scheme() == "http")) {
      answer.problem = fmt::format("it leads to an address that is not https ({})",
                                   url ? scheme + "://" + url->Host() : "no URL");
      return answer;
    }
    if (url->HasCredentials()) {
      answer.problem = "it leads to an address with a password in it";
      return answer;
    }
    std::string next;
    GetOnce(*url, range, file_bytes, max_bytes, sink, &answer, &next);
    if (next.empty() || !answer.problem.empty()) return answer;
    current = std::move(next);
  }
  answer.problem = fmt::format("more than {} redirects", kMaxRedirects);
  return answer;
}

HttpAnswer HttpGetter::GetText(const std::string& url, int64_t max_bytes, std::string* text) {
  text->clear();
  return Get(url, std::nullopt, 0, max_bytes, [text](std::string_view bytes) {
    text->append(bytes);
    return true;
  });
}

}  // namespace lapidary::hub
