// lapidary::Server: `lapidary serve` on a thread of this process.
#include <sys/types.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "apps/foreign_flags.h"
#include "apps/serve_command.h"
#include "lapidary/server.h"
#include "library/log.h"
#include "library/session_core.h"
#include "server/http_server.h"
#include "session/session.h"

namespace lapidary::v0 {

class ServerCore final : private ServeHost {
 public:
  explicit ServerCore(const std::vector<std::string>& arguments);
  ~ServerCore() override;

  const std::string& url() const { return url_; }
  int port() const { return port_; }
  const std::vector<std::string>& model_names() const { return model_names_; }

  // Calls one of the server's functions if it still serves.
  void Tell(void (HttpServer::*what)());
  bool WaitFor(std::chrono::milliseconds timeout);
  void Close();
  ServerStats stats();

 private:
  bool is_forked() const { return getpid() != process_; }
  void CheckProcess() const;
  void Parse(std::vector<std::string> arguments);
  void Run();
  void OnServing(const std::string& url, const std::vector<std::string>& model_names,
                 HttpServer& server, lapidary::Session& session) override;
  void OnEnding() override;

  const pid_t process_ = getpid();
  CLI::App app_;
  std::function<Status()> serve_;
  std::string url_;  // this and the next two do not change once the constructor has returned
  int port_ = 0;
  std::vector<std::string> model_names_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  HttpServer* server_ = nullptr;  // there while it serves
  lapidary::Session* session_ = nullptr;
  std::optional<lapidary::Error> error_;  // why it does not serve
  std::exception_ptr failure_;            // the same: a device, or no memory
  bool is_done_ = false;                  // the thread has nothing left to do
  std::thread thread_;                    // last: it uses all of the above
};

namespace {

constexpr const char* kForked =
    "this process was forked from the one that started the server, whose threads it does not have: "
    "start it here, or start processes afresh ('spawn')";

}  // namespace

ServerCore::ServerCore(const std::vector<std::string>& arguments)
    : serve_(AddServeFlags(&app_, this)) {
  PrepareLog();
  Parse(arguments);
  thread_ = std::thread([this] { Run(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return server_ != nullptr || is_done_; });
  if (server_ != nullptr) return;
  lock.unlock();
  thread_.join();
  if (failure_) {
    try {
      std::rethrow_exception(failure_);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      throw DeviceError(error.what());
    }
  }
  if (error_) Throw(*error_);
  throw Error("the server ended before it served");
}

ServerCore::~ServerCore() {
  if (is_forked()) {
    if (thread_.joinable()) thread_.detach();
  } else {
    Close();
  }
}

void ServerCore::CheckProcess() const {
  if (is_forked()) throw Error(kForked);
}

void ServerCore::Parse(std::vector<std::string> arguments) {
  app_.name("serve");
  app_.set_help_flag();                              // The program explains the options.
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 has it
  try {
    app_.parse(std::move(arguments));
  } catch (const CLI::ExtrasError& error) {
    for (const std::string& extra : app_.remaining()) {
      if (extra.starts_with('-')) throw InvalidInput(ExplainUnknownFlag(extra, app_));
    }
    throw InvalidInput(error.what());
  } catch (const CLI::ParseError& error) {
    throw InvalidInput(error.what());
  }
}

void ServerCore::Run() {
  std::optional<lapidary::Error> error;
  std::exception_ptr failure;
  try {
    if (const Status status = serve_(); !status.ok()) error = status.error();
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  failure_ = std::move(failure);
  is_done_ = true;
  changed_.notify_all();
}

void ServerCore::OnServing(const std::string& url, const std::vector<std::string>& model_names,
                           HttpServer& server, lapidary::Session& session) {
  const std::lock_guard lock(mutex_);
  url_ = url;
  port_ = server.port();
  model_names_ = model_names;
  server_ = &server;
  session_ = &session;
  changed_.notify_all();
}

void ServerCore::OnEnding() {
  const std::lock_guard lock(mutex_);
  server_ = nullptr;
  session_ = nullptr;
}

void ServerCore::Tell(void (HttpServer::*what)()) {
  CheckProcess();
  const std::lock_guard lock(mutex_);
  if (server_ != nullptr) (server_->*what)();
}

bool ServerCore::WaitFor(std::chrono::milliseconds timeout) {
  CheckProcess();
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return is_done_; });
}

void ServerCore::Close() {
  if (is_forked()) return;
  Tell(&HttpServer::Abort);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_done_; });
  }
  static std::mutex joining;  // of several threads that close it, one joins
  const std::lock_guard lock(joining);
  if (thread_.joinable()) thread_.join();
}

ServerStats ServerCore::stats() {
  CheckProcess();
  const std::lock_guard lock(mutex_);
  if (session_ == nullptr) throw Error("the server has ended");
  const Engine& engine = session_->engine();
  const EngineStats now = engine.stats();
  const SchedulerStats& scheduler = now.scheduler;
  const SchedulerLimits& limits = engine.options().limits;
  int pages_in_use = 0;
  for (const int num_pages : scheduler.num_pages_in_use) pages_in_use += num_pages;
  return {.num_running = scheduler.num_running,
          .num_waiting = scheduler.num_waiting,
          .kv_cache_usage = static_cast<double>(pages_in_use) / std::max(1, scheduler.num_pages),
          .num_finished = now.num_finished,
          .num_prompt_tokens = scheduler.num_prompt_tokens,
          .num_cached_prompt_tokens = scheduler.num_prefix_hit_tokens,
          .num_output_tokens = now.num_output_tokens,
          .max_model_len = session_->max_model_len(),
          .max_num_seqs = limits.max_num_seqs,
          .max_num_batched_tokens = limits.max_num_batched_tokens,
          .block_size = engine.kv_layout().tokens_per_page[kFullGroup],
          .num_blocks = scheduler.num_pages};
}

Server::Server(const std::vector<std::string>& arguments)
    : core_(std::make_unique<ServerCore>(arguments)) {}
Server::~Server() = default;
const std::string& Server::url() const { return core_->url(); }
int Server::port() const { return core_->port(); }
const std::vector<std::string>& Server::model_names() const { return core_->model_names(); }
void Server::Drain() { core_->Tell(&HttpServer::Leave); }
bool Server::WaitFor(std::chrono::milliseconds timeout) const { return core_->WaitFor(timeout); }
void Server::Close() { core_->Close(); }
ServerStats Server::stats() const { return core_->stats(); }

}  // namespace lapidary::v0
