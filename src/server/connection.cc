#include "server/connection.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>

#include "base/memory_reserve.h"
#include "server/log_failure.h"
#include "server/random_id.h"

namespace lapidary {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr std::chrono::seconds kLingerTime{2};
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

// How often a client that has sent more than one request is looked at.
constexpr std::chrono::milliseconds kDepartureInterval{100};
constexpr std::string_view kPlainHttpAnswer =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    "This server speaks HTTPS: use https:// in the address.\n";

constexpr std::string_view kComment = ": still at work\n\n";
constexpr std::string_view kBlank = " ";  // the same between lines of JSON

// Pieces of a response that are smaller are put together.
constexpr size_t kBlockBytes = size_t{64} << 10;
constexpr size_t kSmallBodyBytes = size_t{64} << 10;
// Of one write.
constexpr size_t kMaxWriteBytes = size_t{256} << 10;

// What the other side has done, read or not: POLLRDHUP, it has sent its last byte; POLLHUP or
// POLLERR, it has gone.
short HangupsOf(int socket) {
  pollfd state{socket, POLLRDHUP, 0};
  return poll(&state, 1, 0) > 0 ? state.revents : short{0};
}

std::string ToString(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

Connection::Connection(tcp::socket socket, std::shared_ptr<asio::ssl::context> tls,
                       const HttpOptions& options, const OriginCheck& origins, HttpHandler& handler,
                       std::function<void()> on_closed)
    : stream_(std::move(socket)),
      tls_(std::move(tls)),
      departure_timer_(stream_.get_executor()),
      reading_timer_(stream_.get_executor()),
      silence_timer_(stream_.get_executor()),
      options_(options),
      origins_(origins),
      handler_(handler),
      on_closed_(std::move(on_closed)),
      buffer_(std::max<size_t>(options.max_header_bytes, size_t{64} << 10)) {
  if (tls_) tls_stream_.emplace(stream_, *tls_);
}

void Connection::Post(std::function<void()> task) {
  asio::post(stream_.get_executor(), Guarded([task = std::move(task)] { task(); }));
}

void Connection::OnFailure(const std::exception& error) noexcept {
  const ReserveScope reserve;
  try {
    const ApiError why = ApiErrorOf("a connection failed", error);
    if (state_ == State::kReading && parser_) return Reject(why);
    if (state_ != State::kBusy || gone()) return Close();
    if (const auto callback = std::exchange(on_cut_short_, nullptr)) return callback(why);
    if (events_begun_) return Close();
    Send(handler_.ErrorFor(access_.path, why));
  } catch (const std::exception&) {
    Close();
  }
}

void Connection::Start() {
  Post([this] {
    ErrorCode ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    stream_.socket().non_blocking(true, ignored);  // OnReadable must never wait.
    tls_stream_ ? Handshake() : AwaitRequest();
  });
}

void Connection::Handshake() {
  state_ = State::kReading;
  stream_.expires_after(options_.request_timeout);
  tls_stream_->async_handshake(asio::ssl::stream_base::server, Guarded([this](ErrorCode error) {
                                 if (closed()) return;
                                 const auto code = static_cast<unsigned long>(error.value());
                                 const bool is_http =
                                     error.category() == asio::error::get_ssl_category() &&
                                     ERR_GET_REASON(code) == SSL_R_HTTP_REQUEST;
                                 if (is_http) return RefusePlainHttp();
                                 if (error) return Close();
                                 AwaitRequest();
                               }));
}

void Connection::RefusePlainHttp() {
  stream_.expires_after(options_.write_timeout);
  asio::async_write(stream_, asio::buffer(kPlainHttpAnswer),
                    Guarded([this](ErrorCode error, size_t) {
                      if (error) return Close();
                      tls_stream_.reset();
                      Linger();
                    }));
}

void Connection::Refuse(ApiError why) {
  Post([this, why = std::move(why)] {
    draining_ = true;
    refusal_ = why;
  });
  Start();
}

void Connection::Drain() {
  Post([this] {
    draining_ = true;
    // Ends the wait for a request, but not the reading of one that is here already.
    ErrorCode ignored;
    if (state_ == State::kIdle) stream_.socket().cancel(ignored);
  });
}

void Connection::GiveUp() {
  Post([this] {
    draining_ = true;
    if (state_ != State::kBusy) return Close();
    if (gone()) return;  // It is being sent.
    if (const auto callback = std::exchange(on_cut_short_, nullptr)) {
      callback(ShuttingDown());
    } else {  // It is being prepared.
      Send(handler_.ErrorFor(access_.path, ShuttingDown()));
    }
  });
}

void Connection::Abort() {
  Post([this] { Close(); });
}

bool Connection::HasInput() {
  ErrorCode ignored;
  return buffer_.size() > 0 || stream_.socket().available(ignored) > 0;
}

void Connection::AwaitRequest() {
  state_ = State::kIdle;
  parser_.reset();
  origin_.clear();
  events_begun_ = false;
  response_complete_ = false;
  gone_ = std::make_shared<std::atomic<bool>>(false);
  omits_body_ = false;
  is_half_closed_ = false;
  if (draining_ && !refusal_) return Close();
  if (buffer_.size() > 0) return ReadHead();
  buffer_.shrink_to_fit();
  constexpr size_t kFirstRead = 1024;  // Small: most connections wait here.
  stream_.expires_after(options_.idle_timeout);
  WithStream([&](auto& stream) {
    stream.async_read_some(buffer_.prepare(kFirstRead),
                           Guarded([this](ErrorCode error, size_t num_bytes) {
                             if (closed()) return;
                             // Drain came first, but a request may be here too.
                             const bool is_ended = error == asio::error::operation_aborted;
                             if (is_ended && HasInput()) return ReadHead();
                             if (error) return Close();
                             buffer_.commit(num_bytes);
                             ReadHead();
                           }));
  });
}

void Connection::ReadHead() {
  state_ = State::kReading;
  unread_input_ = true;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser_->body_limit(options_.max_body_bytes);
  LimitReading();
  WithStream([&](auto& stream) {
    http::async_read_header(stream, buffer_, *parser_, Guarded([this](ErrorCode error, size_t) {
                              if (error) return OnReadError(error);
                              OnHead();
                            }));
  });
}

void Connection::LimitReading() {
  stream_.expires_never();
  is_too_slow_ = false;
  request_begin_ = std::chrono::steady_clock::now();
  reading_timer_.expires_after(options_.request_timeout);
  reading_timer_.async_wait(Guarded([this](ErrorCode cancelled) {
    if (cancelled || state_ != State::kReading) return;
    is_too_slow_ = true;
    stream_.cancel();  // OnReadError answers.
  }));
}

void Connection::BeginAccess() {
  const auto& head = parser_->get();
  constexpr size_t kMaxIdBytes = 128;
  const auto is_plain = [](std::string_view text) {
    return !text.empty() && text.size() <= kMaxIdBytes &&
           std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
  };
  access_ = {};
  access_.id = ToString(head["X-Request-Id"]);
  if (!is_plain(access_.id)) access_.id = RandomId("req-");
  access_.traceparent = ToString(head["traceparent"]);
  if (!is_plain(access_.traceparent)) access_.traceparent.clear();
  const HttpRequest request = TakeRequest();
  boost::system::error_code ignored;
  access_.client = stream_.socket().remote_endpoint(ignored).address().to_string();
  access_.method = request.method;
  access_.path = request.path;
}

void Connection::EndAccess() {
  if (access_.id.empty()) return;
  access_.is_complete = response_complete_ && unsent_.empty();
  access_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - request_begin_).count();
  const AccessRecord access = std::exchange(access_, {});
  handler_.OnDone(access);
}

ApiStatus Connection::CheckHead() const {
  const auto& head = parser_->get();
  const size_t num_hosts = head.count(http::field::host);
  if (num_hosts > 1 || (num_hosts == 0 && !is_http_1_0_)) {
    return ApiError{400, "a request must name one Host"};
  }
  const auto coding = head.find(http::field::content_encoding);
  if (coding != head.end() && !boost::beast::iequals(coding->value(), "identity")) {
    return ApiError{415, "bodies must be sent without a Content-Encoding"};
  }
  return CheckFraming();
}

ApiStatus Connection::PrepareMemory() {
  const auto lease = std::make_shared<ByteLease>(options_.request_memory);
  parser_->get().body().lease = lease;
  const uint64_t body_bytes = parser_->content_length().value_or(0);
  if (body_bytes > options_.max_body_bytes) return {};  // Reading it says so.
  const auto num_bytes = static_cast<size_t>(body_bytes);
  // There was no memory a moment ago: only what takes little of it may try.
  if (!MemoryReserve::Fill() && num_bytes > kSmallBodyBytes) return OutOfMemory();
  if (!options_.request_memory->HasRoom(num_bytes, /*num_held=*/0))
    return lease->Refusal(num_bytes);
  return {};
}

void Connection::WatchSilence() {
  silence_timer_.expires_at(last_event_ + options_.comment_interval);
  silence_timer_.async_wait(Guarded([this](ErrorCode cancelled) {
    if (cancelled || !events_begun_ || gone()) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_event_ >= options_.comment_interval) {
      WriteComment();
    }
    WatchSilence();
  }));
}

void Connection::WriteComment() {
  const auto comment = framing_ == StreamFraming::kJsonLines ? kBlank : kComment;
  Write(chunked_ ? WriteChunk(comment) : std::string(comment));
  last_event_ = std::chrono::steady_clock::now();
}

void Connection::OnHead() {
  const auto& head = parser_->get();
  keep_alive_ = head.keep_alive();
  is_http_1_0_ = head.version() < 11;
  omits_body_ = head.method() == http::verb::head;
  origin_ = ToString(head[http::field::origin]);
  BeginAccess();
  if (draining_) return Reject(refusal_.value_or(ShuttingDown()));
  if (const ApiStatus bad = CheckHead()) return Reject(*bad);
  const std::string host = ToString(head[http::field::host]);
  if (const ApiStatus refused = origins_.Check(host, origin_)) return Reject(*refused);
  if (const ApiStatus refused = handler_.CheckHead(TakeRequest())) return Reject(*refused);
  if (const ApiStatus refused = PrepareMemory()) return Reject(*refused);
  if (!boost::beast::iequals(head[http::field::expect], "100-continue")) return ReadBody();
  WithStream([&](auto& stream) {
    asio::async_write(stream, asio::buffer(kContinue), Guarded([this](ErrorCode error, size_t) {
                        if (error) return Close();
                        ReadBody();
                      }));
  });
}

ApiStatus Connection::CheckFraming() const {
  const auto& head = parser_->get();
  const auto coding = head.find(http::field::transfer_encoding);
  if (coding == head.end()) return {};
  // Beast reads the body as empty when the last coding is not "chunked".
  if (!boost::beast::iequals(coding->value(), "chunked")) {
    return ApiError{501, "the only Transfer-Encoding known here is chunked"};
  }
  if (is_http_1_0_) return ApiError{400, "HTTP/1.0 has no Transfer-Encoding"};
  return {};
}

void Connection::ReadBody() {
  WithStream([&](auto& stream) {
    http::async_read(stream, buffer_, *parser_, Guarded([this](ErrorCode error, size_t) {
                       if (error) return OnReadError(error);
                       OnBody();
                     }));
  });
}

void Connection::OnBody() {
  state_ = State::kBusy;
  unread_input_ = false;
  reading_timer_.cancel();
  WatchForDeparture();
  HttpRequest request = TakeRequest();
  LeasedBody::value_type body = std::move(parser_->get().body());
  request.body = std::move(body.bytes);
  request.memory = std::move(body.lease);
  handler_.Handle(std::move(request), shared_from_this());
}

HttpRequest Connection::TakeRequest() {
  const auto& head = parser_->get();
  HttpRequest request;
  request.method = omits_body_ ? "GET" : ToString(head.method_string());
  request.path = ToString(head.target());
  if (const size_t mark = request.path.find('?'); mark != std::string::npos) {
    request.query = request.path.substr(mark + 1);
    request.path.resize(mark);
  }
  request.authorization = ToString(head[http::field::authorization]);
  request.if_none_match = ToString(head[http::field::if_none_match]);
  request.api_key = ToString(head["x-api-key"]);
  request.data_parallel_rank = ToString(head["X-data-parallel-rank"]);
  request.asked_headers = ToString(head[http::field::access_control_request_headers]);
  return request;
}

void Connection::OnReadError(ErrorCode error) {
  if (closed()) return;
  if (is_too_slow_) {
    return Reject({408, fmt::format("the request did not arrive within {} s",
                                    static_cast<double>(options_.request_timeout.count()) * 1e-3)});
  }
  if (error == http::error::header_limit) {
    return Reject({431, fmt::format("the header exceeds {} bytes", options_.max_header_bytes)});
  }
  if (error == http::error::body_limit) {
    return Reject({413, fmt::format("the body exceeds {} bytes", options_.max_body_bytes)});
  }
  if (error == boost::system::errc::not_enough_memory) {
    const LeasedBody::value_type& body = parser_->get().body();
    // Without a lease it was the system's, while a head was read.
    return Reject(body.lease ? body.lease->Refusal(body.num_refused) : OutOfMemory());
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
  reading_timer_.cancel();
  parser_->get().body() = {};
  if (access_.id.empty()) BeginAccess();  // Its head was not read to the end.
  state_ = State::kBusy;
  Send(handler_.ErrorFor(access_.path, error));
}

void Connection::WatchForDeparture() {
  if (watching_) return;
  watching_ = true;
  stream_.socket().async_wait(tcp::socket::wait_read, Guarded([this](ErrorCode error) {
                                watching_ = false;
                                if (!error) OnReadable();
                              }));
}

void Connection::OnReadable() {
  if (state_ != State::kBusy) return;
  char byte = 0;
  ErrorCode error;
  stream_.socket().receive(asio::buffer(&byte, 1), tcp::socket::message_peek, error);
  if (error == asio::error::would_block) return WatchForDeparture();
  if (error && error != asio::error::eof) return Close();
  const short hangups = HangupsOf(stream_.socket().native_handle());
  if ((hangups & (POLLHUP | POLLERR)) != 0) return Close();
  if ((hangups & POLLRDHUP) != 0) {
    if (tls_stream_) return Close();  // TLS would have said so first.
    ProbeHalfClosed();
  }
  // The client has sent its last byte, or the next request is here already, to be read after this
  // one, or something of TLS. The socket stays readable: look again after a while.
  watching_ = true;
  departure_timer_.expires_after(kDepartureInterval);
  departure_timer_.async_wait(Guarded([this](ErrorCode cancelled) {
    watching_ = false;
    if (!cancelled) OnReadable();
  }));
}

void Connection::ProbeHalfClosed() {
  if (std::exchange(is_half_closed_, true)) return;
  if (events_begun_) return WriteComment();
  if (!is_http_1_0_) Write(std::string(kContinue));
}

HttpHeadOptions Connection::HeadOptions() const {
  HttpHeadOptions options;
  options.keep_alive = keep_alive_ && !draining_;
  options.allowed_origin = origins_.CorsOrigin(origin_);
  options.request_id = access_.id;
  return options;
}

void Connection::Send(HttpResponse response) {
  if (gone()) return;
  access_.status = response.status;
  access_.error_code = response.error_code;
  HttpHeadOptions options = HeadOptions();
  options.content_length = response.body.size();
  std::string head = WriteHead(response, options);
  std::string body = omits_body_ ? std::string() : std::move(response.body);
  response.memory = nullptr;  // From here on its bytes are counted as unsent.
  if (body.size() < kBlockBytes) {
    head += body;
    body.clear();
  }
  response_complete_ = true;
  *gone_ = true;
  unsent_.push_back(std::move(head));
  Write(std::move(body));
}

void Connection::BeginEvents(StreamFraming framing) {
  if (gone()) return;
  events_begun_ = true;
  framing_ = framing;
  chunked_ = !is_http_1_0_;
  if (!chunked_) keep_alive_ = false;
  HttpHeadOptions options = HeadOptions();
  options.chunked = chunked_;
  access_.status = 200;
  HttpResponse response;
  response.content_type = framing == StreamFraming::kJsonLines ? "application/x-ndjson"
                                                               : "text/event-stream; charset=utf-8";
  response.headers.emplace_back("Cache-Control", "no-cache");
  response.headers.emplace_back("X-Accel-Buffering", "no");
  Write(WriteHead(response, options));
  last_event_ = std::chrono::steady_clock::now();
  WatchSilence();
}

void Connection::SendEvent(std::string_view name, std::string_view data) {
  if (gone()) return;
  if (num_unsent_ > options_.max_unsent_bytes) return Close();
  last_event_ = std::chrono::steady_clock::now();
  std::string event =
      framing_ == StreamFraming::kJsonLines ? std::string(data) + "\n" : WriteEvent(name, data);
  Write(chunked_ ? WriteChunk(event) : std::move(event));
}

void Connection::EndEvents() {
  if (gone()) return;
  response_complete_ = true;
  *gone_ = true;
  silence_timer_.cancel();
  Write(chunked_ ? WriteChunk("") : "");
}

// Small pieces share a block; large ones are not copied.
void Connection::Write(std::string bytes) {
  const bool is_idle = num_unsent_ == 0;
  if (unsent_.size() > 1 && unsent_.back().size() + bytes.size() <= kBlockBytes) {
    unsent_.back() += bytes;
  } else if (!bytes.empty()) {
    unsent_.push_back(std::move(bytes));
  }
  CountUnsent();
  if (!is_idle) return;
  if (unsent_.empty()) return FinishResponse();
  progress_ = 0;
  stream_.expires_after(options_.write_timeout);
  WriteSome();
}

void Connection::WriteSome() {
  const std::string& block = unsent_.front();
  const size_t num_bytes = std::min(block.size() - num_sent_of_first_, kMaxWriteBytes);
  WithStream([&](auto& stream) {
    stream.async_write_some(
        asio::buffer(block.data() + num_sent_of_first_, num_bytes),
        Guarded([this](ErrorCode error, size_t num_written) { OnWritten(error, num_written); }));
  });
}

void Connection::OnWritten(ErrorCode error, size_t num_bytes) {
  if (closed()) return;
  if (error) {
    if (error == boost::beast::error::timeout) options_.answer_memory->CountTimeout();
    return Close();
  }
  progress_ += num_bytes;
  num_sent_of_first_ += num_bytes;
  if (num_sent_of_first_ == unsent_.front().size()) {
    unsent_.pop_front();
    num_sent_of_first_ = 0;
    CountUnsent();
  }
  if (unsent_.empty()) {
    stream_.expires_never();
    return FinishResponse();
  }
  if (progress_ >= kWriteProgressBytes) {
    progress_ = 0;
    stream_.expires_after(options_.write_timeout);
  }
  WriteSome();
}

void Connection::CountUnsent() {
  num_unsent_ = 0;
  for (const std::string& block : unsent_) num_unsent_ += block.capacity();
  AnswerMemory& memory = *options_.answer_memory;
  if (num_unsent_ == 0) {
    if (unread_) memory.RemoveUnread(*std::exchange(unread_, std::nullopt));
    return;
  }
  if (!unread_) {
    unread_ = memory.AddUnread([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Abort();
    });
  }
  memory.ResizeUnread(*unread_, num_unsent_);
}
void Connection::FinishResponse() {
  if (!response_complete_) return;  // More events will come.
  on_cut_short_ = nullptr;
  EndAccess();
  if (keep_alive_ && !draining_) return AwaitRequest();
  if (HasInput()) unread_input_ = true;
  if (tls_stream_) return ShutDown();
  unread_input_ ? Linger() : Close();
}

void Connection::Linger() {
  if (state_ != State::kLingering) {
    state_ = State::kLingering;
    ErrorCode ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(kLingerTime);
  }
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(4096), Guarded([this](ErrorCode error, size_t) {
                            if (error || closed()) return Close();
                            Linger();
                          }));
}

void Connection::ShutDown() {
  state_ = State::kLingering;
  stream_.expires_after(kLingerTime);
  tls_stream_->async_shutdown(Guarded([this](ErrorCode error) {
    if (closed()) return;
    if (!unread_input_ || error == boost::beast::error::timeout) return Close();
    tls_stream_.reset();
    state_ = State::kBusy;
    Linger();
  }));
}

void Connection::Close() noexcept {
  if (closed()) return;
  const ReserveScope reserve;
  const auto attempt = [](const auto& action) {
    try {
      action();
    } catch (const std::exception& error) {
      LogFailure("a connection was not closed as it should be", error);
    }
  };
  state_ = State::kClosed;
  *gone_ = true;
  attempt([&] { EndAccess(); });
  departure_timer_.cancel();
  reading_timer_.cancel();
  silence_timer_.cancel();
  if (unread_) options_.answer_memory->RemoveUnread(*std::exchange(unread_, std::nullopt));
  ErrorCode ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  stream_.close();
  if (const auto callback = std::exchange(on_cut_short_, nullptr)) attempt([&] { callback({}); });
  attempt(on_closed_);
}

}  // namespace lapidary
