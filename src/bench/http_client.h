// HTTP for the benchmark: one request per connection, on the caller's io_context.
//
// Every request opens a connection of its own and asks the server to close it: what is measured is
// then the same for servers that keep connections and those that do not, and no request fails
// because its connection had been closed meanwhile.
#pragma once

// Boost 1.74 uses std::exchange without including it.
// clang-format off
#include <utility>
#include <boost/asio/awaitable.hpp>
// clang-format on
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace boost::asio::ssl {
class context;
}

namespace lapidary::bench {

// http://HOST[:PORT][/PREFIX], or https
struct BaseUrl {
  bool is_https = false;
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
  std::string prefix;  // "" or "/something", put before every path

  std::string HostHeader() const;
  std::string Origin() const;  // the URL without the prefix
};

Result<BaseUrl> ParseBaseUrl(std::string_view text);

struct HttpCall {
  std::string method;  // GET or POST
  std::string path;
  std::string body;  // JSON, for POST
  std::vector<std::pair<std::string, std::string>> headers;
  // No byte for so long ends the call with an error.
  std::chrono::milliseconds idle_timeout{std::chrono::hours(6)};
};

struct HttpAnswer {
  int status = 0;
  std::string reason;
  std::string body;
};

class HttpClient {
 public:
  // Over https the server's certificate must be one that this machine trusts, unless `insecure`.
  explicit HttpClient(BaseUrl url, bool insecure = false)
      : url_(std::move(url)), insecure_(insecure) {}

  const BaseUrl& url() const { return url_; }

  // Looks the host up once, and which certificates are trusted; calls then use what was found.
  Status Resolve();

  // The whole answer, whatever its status. Given `on_bytes`, the body of an answer with status 200
  // goes there as it comes instead; an error it returns ends the call. An error without an answer
  // is a Result's.
  using BytesSink = std::function<Status(std::string_view bytes)>;
  boost::asio::awaitable<Result<HttpAnswer>> Send(HttpCall call,
                                                  BytesSink on_bytes = nullptr) const;

  // The same on an io_context of its own, for calls outside the measurement.
  Result<HttpAnswer> SendAndWait(HttpCall call, BytesSink on_bytes = nullptr) const;

 private:
  boost::asio::awaitable<HttpAnswer> SendOrThrow(const HttpCall& call, const BytesSink& on_bytes,
                                                 Status* sink_status) const;
  // Over a connection that stands: a beast::tcp_stream, or TLS over one.
  template <typename Stream>
  boost::asio::awaitable<HttpAnswer> Exchange(Stream& stream, const HttpCall& call,
                                              const BytesSink& on_bytes, Status* sink_status) const;

  BaseUrl url_;
  bool insecure_ = false;
  std::shared_ptr<boost::asio::ssl::context> tls_;  // for https
  std::vector<boost::asio::ip::tcp::endpoint> endpoints_;
};

}  // namespace lapidary::bench
