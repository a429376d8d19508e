// Sends prepared requests to a server on time and records the answers. One thread, however many
// requests are open.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/completion_stream.h"
#include "bench/http_client.h"

namespace lapidary::bench {

struct LoadRequest {
  HttpCall call;              // asks for a streamed completion
  int64_t prompt_tokens = 0;  // unless the server says
  double arrival = 0.0;       // seconds after the start
};

struct LoadOptions {
  std::optional<int> max_concurrency;  // open at once; the others wait their turn, in order
  std::function<void(const RequestRecord&)> on_ended;  // after every request
};

struct LoadRun {
  std::vector<RequestRecord> records;  // in the order of the requests
  double duration_s = 0.0;             // from the start to the end of the last
};

LoadRun RunLoad(const HttpClient& client, std::span<const LoadRequest> requests,
                const LoadOptions& options);

// One request, now.
RequestRecord RunOne(const HttpClient& client, const LoadRequest& request);

}  // namespace lapidary::bench
