// Prompts run on the engine itself, without a server, and what its events say about time.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bench/random_prompts.h"
#include "session/session.h"

namespace lapidary::bench {

struct TokenEvent {
  double at = 0.0;  // seconds since the run began
  int request = 0;  // index of the prompt
  int num_tokens = 0;
};

struct EngineRun {
  double duration_s = 0.0;
  std::vector<double> submitted;   // by request, seconds since the run began
  std::vector<TokenEvent> events;  // in the order the engine sent them
  int64_t num_output_tokens = 0;
};

struct EngineRunOptions {
  int max_open = 2048;                     // requests given to the engine at once
  std::function<void()> on_finished = {};  // after each request, on the engine's thread
  // Seconds by a clock that both the caller's and the engine's thread may read; else real time.
  std::function<double()> now = {};
};

// Every prompt runs to its output_len, greedily; nothing is kept for later prompts. An error when
// the engine refuses or fails a request.
Result<EngineRun> RunOnEngine(Session& session, std::span<const BenchPrompt> prompts,
                              const EngineRunOptions& options = {});

// Seconds from a request's submission to its first token, by request.
std::vector<double> FirstTokenSeconds(const EngineRun& run);

// Seconds a token of each request's answer, from its first event to its last.
std::vector<double> TokenSeconds(const EngineRun& run);

// A step that decoded one row for each of `num_requests` requests and did nothing else.
struct DecodeStep {
  double seconds = 0.0;
  double tokens_per_request = 1.0;  // above 1 when drafts were accepted
};

// The decode-only steps of a run in which all requests took part. A step's time is the time from
// the end of the step before, so that one must have been complete too: its end is known because it
// sent events. Steps that hold prompt tokens, or fewer requests, are left out.
std::vector<DecodeStep> DecodeSteps(const EngineRun& run);

}  // namespace lapidary::bench
