// One GET after another over connections that stay open, with redirects by the Hub's rules: our
// token goes to the Hub's own scheme, host and port and to nobody else, a redirect may lead to any
// host, and to plain http only where the Hub itself is asked over it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "hub/hub_settings.h"
#include "net/curl.h"

namespace lapidary::hub {

struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;  // one after the last
};

struct HttpAnswer {
  long status = 0;        // of the last answer; 0: there was none
  std::string problem;    // why it is not whole; empty: it is, whatever its status
  std::string url;        // that answered at last
  int64_t num_bytes = 0;  // that `sink` took
  // Of its headers; empty where they are missing.
  std::string error_code;      // X-Error-Code
  std::string error_message;   // X-Error-Message
  std::string link;            // Link
  int retry_after = 0;         // seconds
  bool ignored_range = false;  // the whole file came, or began to, where a range was asked for
  bool was_too_long = false;   // more bytes came than were asked for

  bool ok() const { return problem.empty() && (status == 200 || status == 206); }
};

class HttpGetter {
 public:
  // Gives up what it does soon after `cancelled` is set.
  HttpGetter(const HubSettings& settings, const std::atomic<bool>& cancelled);

  // Takes the bytes of a 200 or a 206, as they come; false ends the transfer.
  using Sink = std::function<bool(std::string_view)>;

  // Of the file at `url`, which must have `file_bytes` bytes if a range of it is asked for. At most
  // `max_bytes` reach the sink; more is a problem of the answer.
  HttpAnswer Get(const std::string& url, std::optional<ByteRange> range, int64_t file_bytes,
                 int64_t max_bytes, const Sink& sink);
  // A whole answer in memory.
  HttpAnswer GetText(const std::string& url, int64_t max_bytes, std::string* text);

 private:
  // Without redirects: where it leads to is in `next`.
  void GetOnce(const net::Url& url, std::optional<ByteRange> range, int64_t file_bytes,
               int64_t max_bytes, const Sink& sink, HttpAnswer* answer, std::string* next);

  const HubSettings& settings_;
  const std::atomic<bool>& cancelled_;
  const std::optional<net::Url> endpoint_;
  net::Easy easy_;
};

}  // namespace lapidary::hub
