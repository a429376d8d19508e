#include "bench/http_client.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <charconv>

namespace lapidary::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = asio::ssl;
using asio::ip::tcp;

// An answer kept whole (an error, a list of models) may have this many bytes.
constexpr size_t kMaxKeptBytes = size_t{16} << 20;

// Waiting may help, but for a certificate.
Error Explain(const boost::system::error_code& error) {
  const auto busy = [](std::string message) { return Error{std::move(message), ErrorKind::kBusy}; };
  if (error == beast::error::timeout) return busy("the server sent nothing for too long");
  if (error == http::error::end_of_stream || error == http::error::partial_message ||
      error == asio::error::eof || error == asio::error::connection_reset ||
      error == asio::error::broken_pipe || error == ssl::error::stream_truncated) {
    return busy("the server closed the connection before the answer was complete");
  }
  if (error.category() == asio::error::get_ssl_category()) {
    const auto code = static_cast<unsigned long>(error.value());
    if (ERR_GET_REASON(code) == SSL_R_CERTIFICATE_VERIFY_FAILED) {
      return MakeError(
          "the server's certificate is not trusted here: SSL_CERT_FILE names a file with others, "
          "--insecure asks for none");
    }
    return busy(fmt::format("TLS: {}", error.message()));
  }
  return busy(error.message());
}

}  // namespace

std::string BaseUrl::HostHeader() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", port);
}

std::string BaseUrl::Origin() const {
  return fmt::format("{}://{}", is_https ? "https" : "http", HostHeader());
}

Result<BaseUrl> ParseBaseUrl(std::string_view text) {
  constexpr std::string_view kHttp = "http://";
  constexpr std::string_view kHttps = "https://";
  BaseUrl url;
  url.is_https = text.starts_with(kHttps);
  if (!url.is_https && !text.starts_with(kHttp)) {
    return MakeError("--base-url '{}': must look like http://127.0.0.1:8000", text);
  }
  std::string_view rest = text.substr(url.is_https ? kHttps.size() : kHttp.size());
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
  url.port = !port.empty() ? std::string(port.substr(1)) : url.is_https ? "443" : "80";
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
  if (!url_.is_https) return {};
  tls_ = std::make_shared<ssl::context>(ssl::context::tls_client);
  if (insecure_) return {};
  tls_->set_verify_mode(ssl::verify_peer);
  tls_->set_verify_callback(ssl::host_name_verification(url_.host));
  tls_->set_default_verify_paths(error);
  if (error) return MakeError("the certificates trusted here: {}", error.message());
  return {};
}

template <typename Stream>
asio::awaitable<HttpAnswer> HttpClient::Exchange(Stream& stream, const HttpCall& call,
                                                 const BytesSink& on_bytes,
                                                 Status* sink_status) const {
  beast::tcp_stream& connection = beast::get_lowest_layer(stream);
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
  connection.expires_after(call.idle_timeout);
  co_await http::async_write(stream, request, asio::use_awaitable);

  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  connection.expires_after(call.idle_timeout);
  co_await http::async_read_header(stream, buffer, parser, asio::use_awaitable);
  const bool is_streamed = on_bytes && parser.get().result() == http::status::ok;
  if (is_streamed) {
    parser.body_limit(boost::none);
  } else {
    parser.body_limit(kMaxKeptBytes);
  }
  while (!parser.is_done()) {
    connection.expires_after(call.idle_timeout);
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

asio::awaitable<HttpAnswer> HttpClient::SendOrThrow(const HttpCall& call, const BytesSink& on_bytes,
                                                    Status* sink_status) const {
  beast::tcp_stream connection(co_await asio::this_coro::executor);
  connection.expires_after(call.idle_timeout);
  co_await connection.async_connect(endpoints_, asio::use_awaitable);
  connection.socket().set_option(tcp::no_delay(true));
  if (!url_.is_https) co_return co_await Exchange(connection, call, on_bytes, sink_status);
  ssl::stream<beast::tcp_stream&> stream(connection, *tls_);
  boost::system::error_code is_name;
  asio::ip::make_address(url_.host, is_name);
  // Servers with several certificates are told a name; an address is none.
  if (is_name) SSL_set_tlsext_host_name(stream.native_handle(), url_.host.c_str());
  co_await stream.async_handshake(ssl::stream_base::client, asio::use_awaitable);
  co_return co_await Exchange(stream, call, on_bytes, sink_status);
}

asio::awaitable<Result<HttpAnswer>> HttpClient::Send(HttpCall call, BytesSink on_bytes) const {
  Status sink_status;
  try {
    HttpAnswer answer = co_await SendOrThrow(call, on_bytes, &sink_status);
    if (!sink_status.ok()) co_return sink_status.error();
    co_return answer;
  } catch (const boost::system::system_error& error) {
    co_return Explain(error.code());
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
