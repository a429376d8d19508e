#include "bench/engine_run.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

namespace lapidary::bench {
namespace {

double RealSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Shared with the engine's thread.
struct Progression {
  std::mutex mutex;
  std::condition_variable changed;
  EngineRun run;
  int num_finished = 0;
  std::string error;
};

struct Step {
  double at = 0.0;
  std::vector<bool> has_request;
  int num_requests = 0;
  int num_tokens = 0;
  bool has_first_token = false;
};

// Events of one step come together and name a request once: a repetition begins the next step.
std::vector<Step> SplitIntoSteps(const EngineRun& run) {
  std::vector<Step> steps;
  std::vector<bool> has_tokens(run.submitted.size(), false);
  for (const TokenEvent& event : run.events) {
    if (steps.empty() || steps.back().has_request[event.request]) {
      steps.emplace_back();
      steps.back().at = event.at;
      steps.back().has_request.resize(run.submitted.size(), false);
    }
    Step& step = steps.back();
    step.has_request[event.request] = true;
    ++step.num_requests;
    step.num_tokens += event.num_tokens;
    step.has_first_token |= !has_tokens[event.request];
    has_tokens[event.request] = true;
  }
  return steps;
}

}  // namespace

Result<EngineRun> RunOnEngine(Session& session, std::span<const BenchPrompt> prompts,
                              const EngineRunOptions& options) {
  auto sampling = std::make_shared<SamplingParams>();
  sampling->temperature = 0.0f;
  auto shared = std::make_shared<Progression>();
  shared->run.submitted.resize(prompts.size());
  const std::function<double()> clock = options.now ? options.now : RealSeconds;
  const auto now = [clock, start = clock()] { return clock() - start; };
  const auto sink_of = [&](int request) {
    return [shared, now, request, on_finished = options.on_finished](const RequestEvent& event) {
      {
        const std::lock_guard lock(shared->mutex);
        const int num_tokens = static_cast<int>(event.tokens.size());
        if (num_tokens > 0) shared->run.events.push_back({now(), request, num_tokens});
        shared->run.num_output_tokens += num_tokens;
        if (!event.finish) return;
        if (*event.finish == FinishReason::kError) shared->error = event.error;
      }
      if (on_finished) on_finished();
      const std::lock_guard lock(shared->mutex);
      ++shared->num_finished;
      shared->changed.notify_all();
    };
  };
  const int num_requests = static_cast<int>(prompts.size());
  std::vector<Request> requests(prompts.size());
  for (int request = 0; request < num_requests; ++request) {
    requests[request].prompt.ids = prompts[request].ids;
    requests[request].max_new_tokens = prompts[request].output_len;
    requests[request].ignore_eos = true;
    requests[request].sampling = sampling;
    requests[request].goes_on = false;
  }
  std::vector<RequestHandle> handles;
  Status refused;
  for (int request = 0; request < num_requests && refused.ok(); ++request) {
    std::unique_lock lock(shared->mutex);
    shared->changed.wait(lock, [&] { return request - shared->num_finished < options.max_open; });
    shared->run.submitted[request] = now();
    lock.unlock();
    auto handle = session.Submit(requests[request], sink_of(request));
    handle.ok() ? handles.push_back(std::move(*handle)) : void(refused = handle.error());
  }
  // Nothing of this run goes on after it: its callbacks belong to the caller.
  if (!refused.ok()) {
    for (const RequestHandle& handle : handles) handle.Cancel();
  }
  std::unique_lock lock(shared->mutex);
  shared->changed.wait(lock, [&] { return shared->num_finished == std::ssize(handles); });
  for (RequestHandle& handle : handles) handle.Release();
  RETURN_IF_ERROR(refused);
  if (!shared->error.empty()) return MakeError("{}", shared->error);
  shared->run.duration_s = now();
  return std::move(shared->run);
}

std::vector<double> FirstTokenSeconds(const EngineRun& run) {
  std::vector<double> seconds(run.submitted.size(), -1.0);
  for (const TokenEvent& event : run.events) {
    if (seconds[event.request] >= 0.0) continue;
    seconds[event.request] = event.at - run.submitted[event.request];
  }
  return seconds;
}

std::vector<double> TokenSeconds(const EngineRun& run) {
  struct Answer {
    double first_at = 0.0;
    double last_at = 0.0;
    int num_first = 0;  // tokens of its first event
    int num_tokens = 0;
  };
  std::vector<Answer> answers(run.submitted.size());
  for (const TokenEvent& event : run.events) {
    Answer& answer = answers[event.request];
    if (answer.num_tokens == 0) {
      answer.first_at = event.at;
      answer.num_first = event.num_tokens;
    }
    answer.last_at = event.at;
    answer.num_tokens += event.num_tokens;
  }
  std::vector<double> seconds;
  for (const Answer& answer : answers) {
    const int num_after = answer.num_tokens - answer.num_first;
    if (num_after > 0) seconds.push_back((answer.last_at - answer.first_at) / num_after);
  }
  return seconds;
}

std::vector<DecodeStep> DecodeSteps(const EngineRun& run) {
  const std::vector<Step> steps = SplitIntoSteps(run);
  const int num_requests = static_cast<int>(run.submitted.size());
  std::vector<DecodeStep> decode_steps;
  for (size_t idx = 1; idx < steps.size(); ++idx) {
    const Step& step = steps[idx];
    const Step& before = steps[idx - 1];
    if (step.has_first_token || step.num_requests < num_requests) continue;
    if (before.num_requests < num_requests) continue;
    decode_steps.push_back(
        {step.at - before.at, static_cast<double>(step.num_tokens) / num_requests});
  }
  return decode_steps;
}

}  // namespace lapidary::bench
