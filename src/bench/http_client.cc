#include "bench/http_client.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>

namespace lapidary::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

// An answer kept whole (an error, a list of models) may have this many bytes.
constexpr size_t kMaxKeptBytes = size_t{16} << 20;

std::string Explain(const boost::system::error_code& error) {
  if (error == beast::error::timeout) return "the server sent nothing for too long";
  if (error == http::error::end_of_stream || error == http::error::partial_message ||
      error == asio::error::eof || error == asio::error::connection_reset ||
      error == asio::error::broken_pipe) {
    return "the server closed the connection before the answer was complete";
  }
  return error.message();
}

}  // namespace

std::string BaseUrl::HostHeader() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", port);
}

Result<BaseUrl> ParseBaseUrl(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  if (text.starts_with("https://")) {
    return MakeError("--base-url {}: https is not spoken here; name the server's http port", text);
  }
  if (!text.starts_with(kScheme)) {
    return MakeError("--base-url '{}': must look like http://127.0.0.1:8000", text);
  }
  std::string_view rest = text.substr(kScheme.size());
  BaseUrl url;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    url.prefix = rest.substr(slash);
    while (url.prefix.ends_with('/')) url.prefix.pop_back();
    // As clients are given it: paths name their version themselves.
    if (url.prefix.ends_with("/v1")) url.prefix.resize(url.prefix.size() - 3);
    rest = rest.substr(0, slash);
  }
  std::string_view port;
  if (rest.starts_with('[')) {
    const size_t end = rest.find(']');
    if (end == std::string_view::npos) return MakeError("--base-url '{}': ']' is missing", text);
    url.host = rest.substr(1, end - 1);
    port = rest.substr(end + 1);
  } else {
    const size_t colon = std::min(rest.find(':'), rest.size());
    url.host = rest.substr(0, colon);
    port = rest.substr(colon);
  }
  url.port = port.empty() ? "80" : std::string(port.substr(1));
  int number = 0;
  const auto [end, error] =
      std::from_chars(url.port.data(), url.port.data() + url.port.size(), number);
  const bool is_port = error == std::errc() && end == url.port.data() + url.port.size() &&
                       number > 0 && number < 65536 && (port.empty() || port[0] == ':');
  if (url.host.empty() || !is_port || text.find_first_of(" \t\r\n") != std::string_view::npos) {
    return MakeError("--base-url '{}': must look like http://127.0.0.1:8000", text);
  }
  return url;
}

Status HttpClient::Resolve() {
  asio::io_context io;
  boost::system::error_code error;
  const auto found = tcp::resolver(io).resolve(url_.host, url_.port, error);
  if (error) return MakeError("--base-url: '{}' has no address: {}", url_.host, error.message());
  endpoints_.clear();
  for (const auto& entry : found) endpoints_.push_back(entry.endpoint());
  return {};
}

asio::awaitable<HttpAnswer> HttpClient::SendOrThrow(const HttpCall& call, const BytesSink& on_bytes,
                                                    Status* sink_status) const {
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  stream.expires_after(call.idle_timeout);
  co_await stream.async_connect(endpoints_, asio::use_awaitable);
  stream.socket().set_option(tcp::no_delay(true));

  http::request<http::string_body> request;
  request.method_string(call.method);
  request.target(url_.prefix + call.path);
  request.version(11);
  request.set(http::field::host, url_.HostHeader());
  request.set(http::field::user_agent, "lapidary-bench");
  request.set(http::field::connection, "close");
  if (call.method == "POST") request.set(http::field::content_type, "application/json");
  for (const auto& [name, value] : call.headers) request.set(name, value);
  request.body() = call.body;
  request.prepare_payload();
  stream.expires_after(call.idle_timeout);
  co_await http::async_write(stream, request, asio::use_awaitable);

  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  stream.expires_after(call.idle_timeout);
  co_await http::async_read_header(stream, buffer, parser, asio::use_awaitable);
  const bool is_streamed = on_bytes && parser.get().result() == http::status::ok;
  if (is_streamed) {
    parser.body_limit(boost::none);
  } else {
    parser.body_limit(kMaxKeptBytes);
  }
  while (!parser.is_done()) {
    stream.expires_after(call.idle_timeout);
    co_await http::async_read_some(stream, buffer, parser, asio::use_awaitable);
    if (!is_streamed || parser.get().body().empty()) continue;
    *sink_status = on_bytes(parser.get().body());
    if (!sink_status->ok()) break;
    parser.get().body().clear();
  }
  HttpAnswer answer;
  answer.status = parser.get().result_int();
  answer.reason = std::string(parser.get().reason());
  if (!is_streamed) answer.body = std::move(parser.get().body());
  co_return answer;
}

asio::awaitable<Result<HttpAnswer>> HttpClient::Send(HttpCall call, BytesSink on_bytes) const {
  Status sink_status;
  try {
    HttpAnswer answer = co_await SendOrThrow(call, on_bytes, &sink_status);
    if (!sink_status.ok()) co_return sink_status.error();
    co_return answer;
  } catch (const boost::system::system_error& error) {
    co_return MakeError("{}", Explain(error.code()));
  }
}

Result<HttpAnswer> HttpClient::SendAndWait(HttpCall call, BytesSink on_bytes) const {
  asio::io_context io;
  std::optional<Result<HttpAnswer>> answer;
  const auto send = [&]() -> asio::awaitable<void> {
    answer.emplace(co_await Send(std::move(call), std::move(on_bytes)));
  };
  asio::co_spawn(io, send, asio::detached);
  io.run();
  CHECK(answer.has_value());
  return std::move(*answer);
}

}  // namespace lapidary::bench
