#include "bench/load_generator.h"

#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <limits>

#include "bench/sse_reader.h"

namespace lapidary::bench {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A socket is a file, and the usual soft limit is 1024.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

asio::awaitable<Status> Exchange(const HttpClient& client, const LoadRequest& request,
                                 RequestRecord* record) {
  const Clock::time_point start = Clock::now();
  SseReader reader;
  CompletionStream stream;
  const auto on_event = [&](std::string_view data) { return stream.OnEvent(data, Since(start)); };
  const auto answer = co_await client.Send(
      request.call, [&](std::string_view bytes) { return reader.Feed(bytes, on_event); });
  if (!answer.ok()) co_return answer.error();
  if (answer->status != 200) {
    co_return MakeError("HTTP {} {}: {}", answer->status, answer->reason,
                        ErrorMessage(answer->body));
  }
  if (Status status = reader.Finish(on_event); !status.ok()) co_return status;
  co_return stream.Finish(record);
}

class Generator {
 public:
  Generator(const HttpClient& client, std::span<const LoadRequest> requests,
            const LoadOptions& options)
      : client_(client), requests_(requests), options_(options) {}

  LoadRun Run() {
    RaiseFileLimit();
    run_.records.resize(requests_.size());
    start_ = Clock::now();
    Advance();
    io_.run();
    run_.duration_s = Since(start_);
    return std::move(run_);
  }

 private:
  // Starts all that are due and have a place; sees to it that it is called again for the others.
  void Advance() {
    const int limit = options_.max_concurrency.value_or(std::numeric_limits<int>::max());
    while (next_ < requests_.size() && num_open_ < limit) {
      const auto due = start_ + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(requests_[next_].arrival));
      if (due > Clock::now()) {
        timer_.expires_at(due);
        timer_.async_wait([this](boost::system::error_code cancelled) {
          if (!cancelled) Advance();
        });
        return;
      }
      ++num_open_;
      asio::co_spawn(io_, Serve(next_++), asio::detached);
    }
  }

  asio::awaitable<void> Serve(size_t index) {
    RequestRecord& record = run_.records[index];
    record.arrival = requests_[index].arrival;
    record.start = Since(start_);
    record.prompt_tokens = requests_[index].prompt_tokens;
    const Status status = co_await Exchange(client_, requests_[index], &record);
    record.success = status.ok();
    if (!status.ok()) record.error = status.error().message;
    if (options_.on_ended) options_.on_ended(record);
    --num_open_;
    Advance();
  }

  const HttpClient& client_;
  const std::span<const LoadRequest> requests_;
  const LoadOptions& options_;
  asio::io_context io_{1};
  asio::steady_timer timer_{io_};
  Clock::time_point start_;
  size_t next_ = 0;
  int num_open_ = 0;
  LoadRun run_;
};

}  // namespace

LoadRun RunLoad(const HttpClient& client, std::span<const LoadRequest> requests,
                const LoadOptions& options) {
  return Generator(client, requests, options).Run();
}

RequestRecord RunOne(const HttpClient& client, const LoadRequest& request) {
  LoadRequest now = request;
  now.arrival = 0.0;
  return RunLoad(client, {&now, 1}, {}).records[0];
}

}  // namespace lapidary::bench
