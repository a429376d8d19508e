// The HTTP server: accepts, limits, drains. Boost.Beast parses; one thread serves all connections.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/bound_port.h"
#include "server/http_types.h"

namespace lapidary {

// Files in PEM form. Both empty: plain HTTP.
struct TlsOptions {
  std::string certfile;  // the certificate, and those between it and a known one
  std::string keyfile;   // empty: in certfile
  std::string keyfile_password;
};

// Whether a server could start with these files, and if not, why.
Status CheckTls(const TlsOptions& options);

inline constexpr size_t kWriteProgressBytes = size_t{64} << 10;

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                   // 0: any free one
  std::shared_ptr<BoundPort> bound;  // null: Listen binds
  TlsOptions tls;
  int max_connections = 4096;
  size_t max_header_bytes = size_t{16} << 10;
  size_t max_body_bytes = size_t{8} << 20;
  // Bodies being read, and what is made of them, of all clients together.
  std::shared_ptr<ByteBudget> request_memory = std::make_shared<ByteBudget>(size_t{512} << 20);
  // Answers on their way to clients, of all of them together.
  std::shared_ptr<AnswerMemory> answer_memory = std::make_shared<AnswerMemory>(size_t{512} << 20);
  // Unsent bytes of one stream; a client that lets more pile up is dropped.
  size_t max_unsent_bytes = size_t{4} << 20;
  std::chrono::milliseconds idle_timeout{120'000};    // between requests
  std::chrono::milliseconds request_timeout{30'000};  // from a request's first byte to its last
  // To take kWriteProgressBytes, or all there is if it is less.
  std::chrono::milliseconds write_timeout{30'000};
  std::chrono::milliseconds drain_delay{0};  // how long it goes on as before after SIGTERM
  std::chrono::milliseconds shutdown_timeout{30'000};
  // A stream that says nothing for so long gets a comment, or a proxy would take it for dead.
  std::chrono::milliseconds comment_interval{15'000};
  std::vector<std::string> allowed_origins;  // of web pages, see OriginCheck; "*": any
  std::vector<std::string> allowed_hosts;    // names in Host, the same
  // SIGTERM, SIGINT and SIGHUP are this server's; else only Leave and Abort end it.
  bool takes_signals = true;
  // Called now and then while the server runs, on its thread.
  std::function<void()> on_tick;
  std::chrono::milliseconds tick_interval{10'000};
};

class HttpServer {
 public:
  // `handler` must outlive the server.
  HttpServer(const HttpOptions& options, HttpHandler& handler);
  ~HttpServer();

  // Afterwards clients can connect, and are served once Run is called.
  Status Listen();
  int port() const;

  // Serves until SIGTERM or SIGINT and for the drain delay, which the handler is told of
  // (OnLeaving) and another signal ends; then finishes what is open for up to the shutdown timeout
  // and ends the rest with an error; a second signal ends that at once. SIGHUP reads the
  // certificate anew, or does the same where there is none.
  void Run();

  // From any thread, while Run is under way or to come: what a SIGTERM does; and the end of all
  // that is open, at once.
  void Leave();
  void Abort();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lapidary
