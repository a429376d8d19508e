#include "server/connection.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>

namespace lapidary {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr std::chrono::seconds kLingerTime{2};
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

std::string ToString(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

Connection::Connection(tcp::socket socket, const HttpOptions& options, const OriginCheck& origins,
                       HttpHandler& handler, std::function<void()> on_closed)
    : stream_(std::move(socket)),
      options_(options),
      origins_(origins),
      handler_(handler),
      on_closed_(std::move(on_closed)),
      buffer_(std::max<size_t>(options.max_header_bytes, size_t{64} << 10)) {}

void Connection::Post(std::function<void()> task) {
  asio::post(stream_.get_executor(),
             [self = shared_from_this(), task = std::move(task)] { task(); });
}

void Connection::Start() {
  Post([this] {
    ErrorCode ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    stream_.socket().non_blocking(true, ignored);  // OnReadable must never wait.
    AwaitRequest();
  });
}

void Connection::Drain() {
  Post([this] {
    draining_ = true;
    if (state_ == State::kIdle) Close();
  });
}

void Connection::Abort() {
  Post([this] { Close(); });
}

void Connection::AwaitRequest() {
  state_ = State::kIdle;
  parser_.reset();
  origin_.clear();
  response_complete_ = false;
  omits_body_ = false;
  if (draining_) return Close();
  if (buffer_.size() > 0) return ReadHead();
  buffer_.shrink_to_fit();
  constexpr size_t kFirstRead = 1024;  // Small: most connections wait here.
  stream_.expires_after(options_.idle_timeout);
  stream_.async_read_some(buffer_.prepare(kFirstRead),
                          [self = shared_from_this()](ErrorCode error, size_t num_bytes) {
                            if (error || self->gone()) return self->Close();
                            self->buffer_.commit(num_bytes);
                            self->ReadHead();
                          });
}

void Connection::ReadHead() {
  state_ = State::kReading;
  unread_input_ = true;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser_->body_limit(options_.max_body_bytes);
  stream_.expires_after(options_.request_timeout);
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](ErrorCode error, size_t) {
                            if (error) return self->OnReadError(error);
                            self->OnHead();
                          });
}

void Connection::OnHead() {
  const auto& head = parser_->get();
  keep_alive_ = head.keep_alive();
  is_http_1_0_ = head.version() < 11;
  omits_body_ = head.method() == http::verb::head;
  origin_ = ToString(head[http::field::origin]);
  if (draining_) return Reject(ShuttingDown());
  const std::string host = ToString(head[http::field::host]);
  if (const ApiStatus refused = origins_.Check(host, origin_)) return Reject(*refused);
  if (const ApiStatus refused = handler_.CheckHead(TakeRequest())) return Reject(*refused);
  if (!boost::beast::iequals(head[http::field::expect], "100-continue")) return ReadBody();
  asio::async_write(stream_, asio::buffer(kContinue),
                    [self = shared_from_this()](ErrorCode error, size_t) {
                      if (error) return self->Close();
                      self->ReadBody();
                    });
}

void Connection::ReadBody() {
  http::async_read(stream_, buffer_, *parser_,
                   [self = shared_from_this()](ErrorCode error, size_t) {
                     if (error) return self->OnReadError(error);
                     self->OnBody();
                   });
}

void Connection::OnBody() {
  state_ = State::kBusy;
  unread_input_ = false;
  stream_.expires_never();
  WatchForDeparture();
  HttpRequest request = TakeRequest();
  request.body = std::move(parser_->get().body());
  handler_.Handle(std::move(request), shared_from_this());
}

HttpRequest Connection::TakeRequest() {
  const auto& head = parser_->get();
  HttpRequest request;
  request.method = omits_body_ ? "GET" : ToString(head.method_string());
  request.path = ToString(head.target());
  request.path.resize(std::min(request.path.find('?'), request.path.size()));
  request.authorization = ToString(head[http::field::authorization]);
  request.if_none_match = ToString(head[http::field::if_none_match]);
  return request;
}

void Connection::OnReadError(ErrorCode error) {
  if (gone()) return;
  if (error == http::error::header_limit) {
    return Reject({431, fmt::format("the header exceeds {} bytes", options_.max_header_bytes)});
  }
  if (error == http::error::body_limit) {
    return Reject({413, fmt::format("the body exceeds {} bytes", options_.max_body_bytes)});
  }
  const bool is_malformed = error.category() == make_error_code(http::error::bad_method).category();
  if (is_malformed && error != http::error::end_of_stream &&
      error != http::error::partial_message) {
    return Reject({400, "the request is not valid HTTP"});
  }
  Close();
}

void Connection::Reject(const ApiError& error) {
  keep_alive_ = false;
  state_ = State::kBusy;
  Send(ErrorResponse(error));
}

void Connection::WatchForDeparture() {
  if (watching_) return;
  watching_ = true;
  stream_.socket().async_wait(tcp::socket::wait_read, [self = shared_from_this()](ErrorCode error) {
    self->watching_ = false;
    if (!error) self->OnReadable();
  });
}

void Connection::OnReadable() {
  if (state_ != State::kBusy) return;
  char byte = 0;
  ErrorCode error;
  stream_.socket().receive(asio::buffer(&byte, 1), tcp::socket::message_peek, error);
  if (error == asio::error::would_block) return WatchForDeparture();
  if (error) return Close();
  // The next request is here already: it is read after this one, and a client that goes is noticed
  // by the failing write.
}

HttpHeadOptions Connection::HeadOptions() const {
  HttpHeadOptions options;
  options.keep_alive = keep_alive_ && !draining_;
  options.allowed_origin = origins_.CorsOrigin(origin_);
  return options;
}

void Connection::Send(HttpResponse response) {
  if (gone()) return;
  HttpHeadOptions options = HeadOptions();
  options.content_length = response.body.size();
  std::string bytes = WriteHead(response, options);
  if (!omits_body_) bytes += response.body;
  response_complete_ = true;
  Write(std::move(bytes));
}

void Connection::BeginEvents() {
  if (gone()) return;
  chunked_ = !is_http_1_0_;
  if (!chunked_) keep_alive_ = false;
  HttpHeadOptions options = HeadOptions();
  options.chunked = chunked_;
  HttpResponse response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers.emplace_back("Cache-Control", "no-cache");
  response.headers.emplace_back("X-Accel-Buffering", "no");
  Write(WriteHead(response, options));
}

void Connection::SendEvent(std::string_view data) {
  if (gone()) return;
  if (unsent_.size() > options_.max_unsent_bytes) return Close();
  std::string event = WriteEvent(data);
  Write(chunked_ ? WriteChunk(event) : std::move(event));
}

void Connection::EndEvents() {
  if (gone()) return;
  response_complete_ = true;
  Write(chunked_ ? WriteChunk("") : "");
}

void Connection::Write(std::string bytes) {
  unsent_ += bytes;
  if (writing_.empty()) Flush();
}

void Connection::Flush() {
  if (unsent_.empty()) return FinishResponse();
  writing_.swap(unsent_);
  stream_.expires_after(options_.write_timeout);
  asio::async_write(
      stream_, asio::buffer(writing_),
      [self = shared_from_this()](ErrorCode error, size_t) { self->OnWritten(error); });
}

void Connection::OnWritten(ErrorCode error) {
  if (gone()) return;
  if (error) return Close();
  stream_.expires_never();
  writing_.clear();
  Flush();
}

void Connection::FinishResponse() {
  if (!response_complete_) return;  // More events will come.
  on_gone_ = nullptr;
  if (unread_input_) return Linger();
  if (!keep_alive_) return Close();
  writing_ = {};
  unsent_ = {};
  AwaitRequest();
}

void Connection::Linger() {
  if (state_ != State::kLingering) {
    state_ = State::kLingering;
    ErrorCode ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(kLingerTime);
  }
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(4096),
                          [self = shared_from_this()](ErrorCode error, size_t) {
                            if (error || self->gone()) return self->Close();
                            self->Linger();
                          });
}

void Connection::Close() {
  if (gone()) return;
  state_ = State::kClosed;
  ErrorCode ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  stream_.close();
  if (auto callback = std::exchange(on_gone_, nullptr)) callback();
  on_closed_();
}

}  // namespace lapidary
