// The engine: many requests over one executor. What the server and the commands talk to; outside
// this folder nothing talks to executors (raw logits come through SingleSequence).
//
// One thread owns the scheduler; Submit and Cancel post to it from any thread. Every accepted
// request ends with exactly one event that carries a finish reason, whatever happens.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/check_kv.h"
#include "engine/draft_policy.h"
#include "engine/mask_maker.h"
#include "engine/scheduler.h"
#include "engine/text_policy.h"
#include "executor/executor.h"
#include "kv/cache_changes.h"

namespace lapidary {

// A request is a sequence to the scheduler, under the same id.
using RequestId = SequenceId;

struct DraftUsage {
  int32_t draft_tokens = 0;     // proposed and verified
  int32_t accepted_tokens = 0;  // of those
};

struct RequestUsage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, found in the prefix cache
  int32_t output_tokens = 0;
  int32_t given_tokens = 0;  // of those, generated before (SequenceSpec::generated)
  DraftUsage drafts;
  std::array<DraftUsage, kNumDraftSources> drafts_by_source{};
};

struct RequestTimings {
  double queue_ms = 0.0;    // until the first step that holds it
  double prefill_ms = 0.0;  // from there to the first token
  double decode_ms = 0.0;   // from the first token to the last
};

struct RequestEvent {
  RequestId id = 0;
  // If asked for: of the prompt tokens from the second on, those that are new. All come before the
  // first token, or with the end.
  std::vector<SampledToken> prompt_logprobs;
  std::vector<SampledToken> tokens;    // new ones; the stop token is the last
  std::optional<FinishReason> finish;  // set in the last event and nowhere else
  std::string error;                   // with FinishReason::kError
  // With it: kInvalid, what the request asked for is the reason; kBusy, a lack of memory is.
  ErrorKind error_kind = ErrorKind::kFault;
  RequestUsage usage;      // with finish
  RequestTimings timings;  // with finish
};

// Called on the engine's thread: must be quick, must not throw, and must not call back into the
// engine but Cancel.
using EventSink = std::function<void(RequestEvent)>;

struct EngineOptions {
  SchedulerLimits limits;
  int max_queue = 4096;  // sequences submitted and not running yet
  bool overlap = true;   // plan the next step while one runs
  // The limits are the most drafts, and each step has as many as pay; else each has that many. What
  // the executor cannot draft by itself (Executor::drafts_text) is left out of the limits.
  bool adapt_drafts = false;
  bool check_kv = false;  // verify every step's pages and lengths before it runs
  std::filesystem::path check_kv_report = "lapidary-kv-violation.json";
  // Told what the prefix cache keeps and gives up; must outlive the engine. May be null.
  CacheChangeQueue* cache_changes = nullptr;
};

struct DraftCounts {
  uint64_t num_rounds = 0;  // with drafts
  uint64_t num_drafts = 0;
  uint64_t num_accepted = 0;
};

struct DraftStats : DraftCounts {
  std::array<DraftCounts, kNumDraftSources> by_source{};
  std::array<uint64_t, kMaxDrafts> accepted_at{};  // by place in the round
  uint64_t num_round_tokens = 0;                   // that those rounds gave
  bool has_collapsed = false;                      // hardly anything of the assistant's is accepted
};

// Steps by their rows: for each bound those with at most so many and more than the bound before,
// then those with more than all.
struct StepSizes {
  static constexpr std::array<int, 13> kBounds = {1,   8,    16,   32,   64,   128,  256,
                                                  512, 1024, 2048, 4096, 8192, 16384};
  std::array<uint64_t, kBounds.size() + 1> num_steps{};

  void Add(size_t num_rows) {
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), static_cast<int>(num_rows));
    ++num_steps[static_cast<size_t>(bound - kBounds.begin())];
  }
};

struct EngineStats {
  SchedulerStats scheduler;
  DraftStats drafts;
  uint64_t num_steps = 0;
  uint64_t num_rows = 0;
  uint64_t num_output_tokens = 0;
  uint64_t num_finished = 0;
  StepCost step_cost;
  StepSizes step_sizes;
};

class Engine {
 public:
  Engine(std::unique_ptr<Executor> executor, const EngineOptions& options);
  // Ends what is still open with kCancelled.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const ModelPlan& plan() const { return executor_->plan(); }
  const KvLayout& kv_layout() const { return executor_->kv_layout(); }
  const EngineOptions& options() const { return options_; }

  // An error when the request can never run (kInvalid) or the queue is full (kBusy); then no event
  // follows.
  // `num_copies` requests share the prompt, each with its own seed (the given one plus its index);
  // ids are returned in order. The prompt's logprobs come with the first, and before any token of
  // the others. Tokens generated before are read by the grammar here, unless the spec has its
  // matcher: that may take its time.
  Result<std::vector<RequestId>> Submit(SequenceSpec spec, int num_copies, EventSink sink);
  Result<RequestId> Submit(SequenceSpec spec, EventSink sink);

  // Ends the request soon, with kCancelled; nothing happens if it has ended. Where there is no
  // memory to say so it goes on to its end.
  void Cancel(RequestId id) noexcept;

  // Lends the executor for work of another kind (SingleSequence): waits until what runs has ended;
  // what comes meanwhile waits. All pages and slots are the borrower's, so the prefix cache is
  // lost. `work` runs on the engine's thread; its error is returned, and one that says so when the
  // device fails or the engine is stopped.
  Status BorrowExecutor(std::function<Status(Executor&)> work);

  EngineStats stats() const;

  // The device failed for good. Every request ends with kError then; only a new engine helps.
  bool has_failed() const { return has_failed_.load(); }

 private:
  using Clock = std::chrono::steady_clock;

  struct OpenRequest {
    EventSink sink;
    Clock::time_point submitted;
    std::optional<Clock::time_point> first_step;
    std::optional<Clock::time_point> first_token;
    RequestUsage usage;
  };
  struct Submission {
    RequestId id;
    SequenceSpec spec;
    EventSink sink;
    Clock::time_point time;
  };

  struct SubmittedStep {
    StepPlan plan;
    Clock::time_point submitted;
  };

  struct Loan {
    std::function<Status(Executor&)> work;
    std::promise<Status> outcome;
  };

  void Loop();
  // Until the engine shall stop.
  void Serve();
  // There was no memory for the engine's own work. What it says about sequences and pages may be
  // half done, so all requests end and a new scheduler takes the place of the old one.
  void StartAfresh();
  void MakeScheduler();
  void LendExecutor();
  // Ends loans that cannot be given any more.
  void RefuseLoans(const std::string& reason);
  // False when the engine shall stop.
  bool TakeInbox(bool may_wait);
  // Leaves it whole where it throws.
  void StartRequest(Submission& submission);
  void StartArrived();
  // The only event of one that was not started.
  void EndUnstarted(Submission& submission, FinishReason reason, ErrorKind kind,
                    const std::string& error);
  // One that waits in the inbox.
  std::optional<Submission> TakeSubmission(RequestId id);
  bool SubmitNextStep();
  void CollectStep();
  void MarkStarted(const StepPlan& plan);
  // What a finished step says about cost and drafting, before its plan is given up.
  void MeasureStep(const StepPlan& plan, const StepOutput& output, Clock::time_point submitted,
                   Clock::time_point now);
  // What one more row costs a step as the last ones, in tokens that they give.
  double RowTokens() const;
  // How much text the next step drafts beside so many drafts of the assistant.
  void ChooseText(int num_assistant_drafts);
  void CountRound(const SequenceProgress& progress, RequestUsage& usage);
  // Masks that were late and are made now.
  void TakeMadeMasks();
  // The last event of a request without news.
  void End(RequestId id, FinishReason reason, const std::string& error,
           ErrorKind kind = ErrorKind::kFault);
  // `last` brings the news and the finish reason.
  void End(RequestId id, RequestEvent last);
  void FailStep(const StepPlan& plan, const Json& violation);
  // The first step in flight ran out of host memory. Which of its rows are computed is not known,
  // so the requests of all steps in flight end, and what these steps were to leave in the prefix
  // cache is dropped.
  void FailFirstInFlight();
  // Waits for the steps in flight, which are the caller's then.
  std::deque<SubmittedStep> DropInFlight();
  // Ends the requests of the newest planned step.
  void EndRequestsOf(const StepPlan& plan, const std::string& error, ErrorKind kind);
  void FailAll(const std::string& error);
  void PublishStats();

  const std::unique_ptr<Executor> executor_;
  const EngineOptions options_;
  const SchedulerLimits limits_;  // of the options, on this executor
  const int num_pages_;

  // Owned by the engine's thread.
  std::optional<Scheduler> scheduler_;  // always there, as is the next
  std::optional<KvChecker> kv_checker_;
  std::unordered_map<RequestId, OpenRequest> open_;
  std::deque<Submission> arrived_;  // taken out of the inbox, to be started
  std::deque<SubmittedStep> in_flight_;
  DraftPolicy draft_policy_;
  TextPolicy text_policy_;
  StepShape last_shape_;  // of the last step without chunks, as it was run
  Clock::time_point last_collected_;
  int num_decoding_ = 1;  // sequences of the last step that sampled
  DraftStats draft_stats_;
  uint64_t num_steps_ = 0;
  uint64_t num_rows_ = 0;
  StepSizes step_sizes_;
  uint64_t num_output_tokens_ = 0;
  uint64_t num_finished_ = 0;
  bool has_just_lent_ = false;
  bool slots_are_clear_ = true;

  std::atomic<bool> has_failed_{false};
  // Submitted and not yet running. Only Submit can still refuse, so it counts; preempted sequences
  // take no place of a new one.
  std::atomic<int> num_queued_{0};

  mutable std::mutex mutex_;  // guards the inbox and the published statistics
  std::condition_variable inbox_changed_;
  RequestId last_id_ = 0;
  std::deque<Submission> submissions_;
  std::deque<RequestId> cancellations_;
  std::deque<Loan> loans_;
  std::deque<MadeMask> made_masks_;
  bool stopping_ = false;
  EngineStats published_;

  // Its threads post to the inbox.
  MaskMaker mask_maker_;
  std::thread thread_;
};

}  // namespace lapidary
