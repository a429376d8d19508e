// One client connection: reads a request, has it handled, writes the response, and again.
//
//   idle --first byte--> reading --whole request--> busy --response written--> idle
//
// With TLS a handshake comes first, and lingering sends a close_notify.
//
// While busy, the socket is watched for the client's departure. Everything runs on the
// connection's strand.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <deque>
#include <exception>
#include <optional>

#include "base/memory_reserve.h"
#include "server/http_head.h"
#include "server/http_server.h"
#include "server/leased_body.h"
#include "server/origin_check.h"

namespace lapidary {

class Connection final : public Responder, public std::enable_shared_from_this<Connection> {
 public:
  // `tls` may be null: plain HTTP. The references must outlive the connection's socket; `on_closed`
  // is called once.
  Connection(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls,
             const HttpOptions& options, const OriginCheck& origins, HttpHandler& handler,
             std::function<void()> on_closed);

  // On any thread.
  void Start();
  void Refuse(ApiError why);  // instead of Start: one request is read, and gets this
  void Drain();               // close now if idle, else after the response
  void GiveUp();  // as Drain, but a response that is not complete ends here, with an error
  void Abort();   // close now
  // On the server's thread, when nothing is under way any more that could go on with it.
  void CloseLost() { Close(); }

  void Post(std::function<void()> task) override;
  void Send(HttpResponse response) override;
  void BeginEvents(StreamFraming framing) override;
  void SendEvent(std::string_view name, std::string_view data) override;
  void EndEvents() override;
  bool gone() const override { return closed() || response_complete_; }
  std::shared_ptr<const std::atomic<bool>> gone_flag() const override { return gone_; }
  void OnCutShort(std::function<void(const ApiStatus&)> callback) override {
    on_cut_short_ = std::move(callback);
  }
  AccessRecord& access() override { return access_; }

 private:
  enum class State { kIdle, kReading, kBusy, kLingering, kClosed };
  using Parser = boost::beast::http::request_parser<LeasedBody>;
  using ErrorCode = boost::beast::error_code;

  // action(stream) with the one that carries HTTP.
  template <typename Action>
  void WithStream(const Action& action) {
    tls_stream_ ? action(*tls_stream_) : action(stream_);
  }
  // For the event loop to call, and alive until then. Where `action` throws, as it does for lack of
  // memory, the client is told so, or the connection closed if that cannot be.
  template <typename Action>
  auto Guarded(Action action) {
    return [self = shared_from_this(), action = std::move(action)](auto... results) mutable {
      const TaskScope scope;
      try {
        action(results...);
      } catch (const std::exception& error) {
        self->OnFailure(error);
      }
    };
  }
  void OnFailure(const std::exception& error) noexcept;
  void Handshake();
  // A client that takes the port for plain HTTP is told so.
  void RefusePlainHttp();
  bool closed() const { return state_ == State::kClosed; }
  // Bytes have come that nobody has read.
  bool HasInput();
  void AwaitRequest();
  void ReadHead();
  void OnHead();
  // A body whose end we would not find where others do, and might take for a request.
  ApiStatus CheckFraming() const;
  // What must be right about any head; our own checks come behind.
  ApiStatus CheckHead() const;
  // Refuses a body for which there is no memory now. What comes takes it as it comes.
  ApiStatus PrepareMemory();
  void LimitReading();
  void BeginAccess();
  void EndAccess();
  // Breaks the silence of a stream.
  void WatchSilence();
  void WriteComment();
  void ReadBody();
  void OnBody();
  // Answers a request that was not read to its end; the connection closes behind it.
  void Reject(const ApiError& error);
  void OnReadError(ErrorCode error);
  HttpRequest TakeRequest();
  void WatchForDeparture();
  void OnReadable();
  // A client that has sent its last byte may still read, or be gone for good: then the system at
  // its end refuses whatever is sent. So something harmless is.
  void ProbeHalfClosed();

  HttpHeadOptions HeadOptions() const;
  void Write(std::string bytes);
  void WriteSome();
  void OnWritten(ErrorCode error, size_t num_bytes);
  // Tells how much the client has not taken.
  void CountUnsent();
  void FinishResponse();
  // Lets the client read the response before unread input makes the kernel reset the connection.
  void Linger();
  // Ends TLS as the protocol wants it, then closes.
  void ShutDown();
  void Close() noexcept;

  boost::beast::tcp_stream stream_;
  const std::shared_ptr<boost::asio::ssl::context> tls_;
  std::optional<boost::asio::ssl::stream<boost::beast::tcp_stream&>> tls_stream_;
  boost::asio::steady_timer departure_timer_;
  boost::asio::steady_timer reading_timer_;
  boost::asio::steady_timer silence_timer_;
  const HttpOptions& options_;
  const OriginCheck& origins_;
  HttpHandler& handler_;
  std::function<void()> on_closed_;
  std::function<void(const ApiStatus&)> on_cut_short_;

  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  State state_ = State::kIdle;
  std::string origin_;
  bool keep_alive_ = true;
  bool is_http_1_0_ = false;
  bool omits_body_ = false;  // HEAD
  bool draining_ = false;
  ApiStatus refusal_;  // set: whoever asks gets this
  bool is_too_slow_ = false;
  AccessRecord access_;
  std::chrono::steady_clock::time_point request_begin_;
  std::chrono::steady_clock::time_point last_event_;
  bool watching_ = false;
  bool is_half_closed_ = false;  // and probed
  bool chunked_ = false;
  StreamFraming framing_ = StreamFraming::kServerSentEvents;
  bool events_begun_ = false;
  bool response_complete_ = false;
  std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);
  bool unread_input_ = false;

  // What the client has not taken: the first block is being sent, and goes as soon as it is.
  std::deque<std::string> unsent_;
  size_t num_sent_of_first_ = 0;
  size_t num_unsent_ = 0;                    // bytes that the blocks take
  size_t progress_ = 0;                      // bytes taken since the time-out began
  std::optional<AnswerMemory::Key> unread_;  // its place among those who wait, while anything is
};

}  // namespace lapidary
