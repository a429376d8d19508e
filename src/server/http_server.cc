#include "server/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <csignal>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/memory_reserve.h"
#include "server/connection.h"
#include "server/limited_warning.h"
#include "server/log_failure.h"
#include "server/tls.h"

namespace lapidary {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// For clients to read that their answer ends here.
constexpr std::chrono::seconds kFarewellTime{2};

// Beyond --max-connections so many more are told that there are too many; the rest find out alone.
constexpr size_t kMaxRefused = 64;

ApiError TooManyConnections() {
  ApiError error{503, "too many connections are open; try again later"};
  error.code = "too_many_connections";
  error.retry_after_seconds = 1;
  return error;
}

// Sockets are files: the usual soft limit of 1024 is below what we promise to hold.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

// Runs on one thread; only connections have strands, so that more threads could be added.
class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, HttpHandler& handler) : options_(options), handler_(handler) {
    if (options_.takes_signals) signals_.emplace(io_, SIGINT, SIGTERM, SIGHUP);
  }

  Status Listen() {
    RaiseFileLimit();
    ASSIGN_OR_RETURN(tls_, LoadTls(options_.tls));
    std::shared_ptr<BoundPort> bound = options_.bound;
    if (bound == nullptr) {
      ASSIGN_OR_RETURN(bound, BoundPort::Bind(options_.host, options_.port));
    }
    ErrorCode error;
    acceptor_.assign(bound->is_ipv6() ? tcp::v6() : tcp::v4(), bound->Release(), error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return MakeError("cannot listen on {} port {}: {}", options_.host, options_.port,
                       error.message());
    }
    origins_.emplace(options_.allowed_origins, options_.host, bound->is_loopback(),
                     options_.allowed_hosts);
    return {};
  }

  int port() const { return acceptor_.local_endpoint().port(); }

  void LeaveSoon() {
    asio::post(io_, [this] { draining_ ? AbortAll() : Leave(); });
  }

  void AbortSoon() {
    asio::post(io_, [this] {
      if (!std::exchange(leaving_, true)) handler_.OnLeaving();
      if (!draining_) Drain();
      asio::post(io_, [this] { AbortAll(); });  // behind what Drain has posted
    });
  }

  void Run() {
    if (signals_) KeepSignalsHandled();
    static_cast<void>(MemoryReserve::Fill());
    // Strands go on to their next handler in a destructor, which allocates.
    const ReserveScope reserve;
    while (true) {
      try {
        KeepWaiting();
        io_.run();
        return;
      } catch (const std::exception& error) {  // One client's bad luck: memory, most likely.
        LogFailure("a connection failed", error);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }

 private:
  // With the last signal set of a process the signals' default action comes back, and a second
  // SIGTERM while the process tidies up would end it with that signal instead of 0. One set stays.
  static void KeepSignalsHandled() {
    static auto* const kept =
        new asio::signal_set(*new asio::io_context(1), SIGINT, SIGTERM, SIGHUP);
    static_cast<void>(kept);
  }

  // Waits for whatever is not waited for: at first, and where a wait could not be renewed.
  void KeepWaiting() {
    CloseLost();
    if (signals_ && !awaits_signal_) AwaitSignal();
    if (!awaits_tick_) AwaitTick();
    if (!accepts_) Accept();
  }

  // Where memory ran out within the libraries below nobody can tell which connection it was, or
  // hears that one was closed. Nothing goes on with those that nobody else holds.
  void CloseLost() {
    for (auto it = connections_.begin(); it != connections_.end();) {
      const auto next = std::next(it);
      if (it->second.use_count() == 1) {
        it->second->CloseLost();
        Forget(it->first);
      }
      it = next;
    }
  }

  void AwaitSignal() {
    signals_->async_wait([this](ErrorCode error, int signal) {
      awaits_signal_ = false;
      if (error) return;
      if (signal == SIGHUP) {
        OnHangUp();
      } else {
        draining_ ? AbortAll() : Leave();
      }
      AwaitSignal();
    });
    awaits_signal_ = true;
  }

  // A terminal that closes, or an administrator with a new certificate.
  void OnHangUp() {
    if (leaving_) return;
    if (tls_ == nullptr) return Leave();
    auto renewed = LoadTls(options_.tls);
    if (!renewed.ok()) {
      spdlog::error("SIGHUP: the old certificate stays in use: {}", renewed.error().message);
      return;
    }
    tls_ = std::move(*renewed);  // Open connections keep theirs.
    spdlog::info("SIGHUP: new connections use the certificate as it is now");
  }

  void AwaitTick() {
    if (!options_.on_tick) return;
    tick_.expires_after(options_.tick_interval);
    tick_.async_wait([this](ErrorCode cancelled) {
      awaits_tick_ = false;
      if (cancelled) return;
      static_cast<void>(MemoryReserve::Fill());
      CloseLost();
      options_.on_tick();
      AwaitTick();
    });
    awaits_tick_ = true;
  }

  void Accept() {
    acceptor_.async_accept(asio::make_strand(io_), [this](ErrorCode error, tcp::socket socket) {
      accepts_ = false;
      if (error == asio::error::operation_aborted) return;
      if (error) {
        // Out of files, most likely: give others time to close theirs.
        const auto line =
            not_accepted_.Next(fmt::format("a connection was not accepted: {}", error.message()),
                               LimitedWarning::Clock::now());
        if (line) spdlog::warn("{}", *line);
        retry_.expires_after(std::chrono::milliseconds(100));
        retry_.async_wait([this](ErrorCode cancelled) {
          accepts_ = false;
          if (!cancelled) Accept();
        });
        accepts_ = true;
        return;
      }
      if (connections_.size() < options_.max_connections + kMaxRefused) Open(std::move(socket));
      Accept();
    });
    accepts_ = true;
  }

  void Open(tcp::socket socket) {
    const uint64_t key = next_key_++;
    auto on_closed = [this, key] { asio::post(io_, [this, key] { Forget(key); }); };
    auto connection = std::make_shared<Connection>(std::move(socket), tls_, options_, *origins_,
                                                   handler_, std::move(on_closed));
    const bool is_one_too_many =
        connections_.size() >= static_cast<size_t>(options_.max_connections);
    connections_.emplace(key, connection);
    if (refusing_) return connection->Refuse(ShuttingDown());
    if (is_one_too_many) return connection->Refuse(TooManyConnections());
    connection->Start();
  }

  void Forget(uint64_t key) {
    if (connections_.erase(key) == 0) return;  // It was lost, or had gone already.
    if (refusing_ && key < end_served_ && --num_served_ == 0) io_.stop();
  }

  // Load balancers see that it is not ready, and have the delay to send nobody any more.
  void Leave() {
    const bool is_second = std::exchange(leaving_, true);
    if (!is_second) handler_.OnLeaving();
    if (is_second || options_.drain_delay.count() == 0) return Drain();
    spdlog::info("leaving: still serving for {} s", options_.drain_delay.count() / 1000.0);
    deadline_.expires_after(options_.drain_delay);
    deadline_.async_wait([this](ErrorCode cancelled) {
      if (!cancelled && !draining_) Drain();
    });
  }

  void Drain() {
    draining_ = true;
    AcceptTheRest();
    // One more may have been accepted whose handler has not run yet: it comes before this.
    asio::post(io_, [this] { RefuseNewcomers(); });
  }

  // Those who have connected but were not accepted yet are no newcomers.
  void AcceptTheRest() {
    ErrorCode error;
    acceptor_.non_blocking(true, error);
    while (!error && connections_.size() < static_cast<size_t>(options_.max_connections)) {
      tcp::socket socket(asio::make_strand(io_));
      acceptor_.accept(socket, error);
      if (!error) Open(std::move(socket));
    }
  }

  // They hear a 503, which tells a load balancer more than a refused connection, but do not keep
  // the server.
  void RefuseNewcomers() {
    refusing_ = true;
    spdlog::info("shutting down: {} connections, at most {} s", connections_.size(),
                 options_.shutdown_timeout.count() / 1000.0);
    end_served_ = next_key_;
    num_served_ = connections_.size();
    if (connections_.empty()) return io_.stop();
    for (const auto& [key, connection] : connections_) connection->Drain();
    deadline_.expires_after(options_.shutdown_timeout);
    deadline_.async_wait([this](ErrorCode cancelled) {
      if (!cancelled) GiveUp();
    });
  }

  void GiveUp() {
    spdlog::warn("ending {} connections that have not finished", connections_.size());
    for (const auto& [key, connection] : connections_) connection->GiveUp();
    deadline_.expires_after(kFarewellTime);
    deadline_.async_wait([this](ErrorCode cancelled) {
      if (!cancelled) AbortAll();
    });
  }

  void AbortAll() {
    spdlog::warn("closing {} connections that have not finished", connections_.size());
    for (const auto& [key, connection] : connections_) connection->Abort();
  }

  const HttpOptions options_;
  HttpHandler& handler_;
  std::optional<OriginCheck> origins_;       // there once the address is known
  std::shared_ptr<asio::ssl::context> tls_;  // null: plain HTTP
  asio::io_context io_{1};
  tcp::acceptor acceptor_{io_};
  std::optional<asio::signal_set> signals_;  // there if it takes any
  asio::steady_timer tick_{io_};
  asio::steady_timer deadline_{io_};
  asio::steady_timer retry_{io_};
  LimitedWarning not_accepted_;
  bool awaits_signal_ = false;
  bool awaits_tick_ = false;
  bool accepts_ = false;   // or will once files are closed
  bool leaving_ = false;   // a signal has come
  bool draining_ = false;  // and the delay is over
  bool refusing_ = false;
  uint64_t next_key_ = 0;
  uint64_t end_served_ = 0;  // while refusing: keys below were there before
  size_t num_served_ = 0;    // of those, still open
  std::unordered_map<uint64_t, std::shared_ptr<Connection>> connections_;
};

Status CheckTls(const TlsOptions& options) {
  const auto context = LoadTls(options);
  return context.ok() ? Status() : Status(context.error());
}

HttpServer::HttpServer(const HttpOptions& options, HttpHandler& handler)
    : impl_(std::make_unique<Impl>(options, handler)) {}
HttpServer::~HttpServer() = default;
Status HttpServer::Listen() { return impl_->Listen(); }
int HttpServer::port() const { return impl_->port(); }
void HttpServer::Run() { impl_->Run(); }
void HttpServer::Leave() { impl_->LeaveSoon(); }
void HttpServer::Abort() { impl_->AbortSoon(); }

}  // namespace lapidary
