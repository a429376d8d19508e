#include "engine/engine.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>

#include "base/random_bits.h"
#include "engine/generated_tokens.h"

namespace lapidary {
namespace {

double Milliseconds(std::chrono::steady_clock::time_point from,
                    std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// More would take the cores of the steps.
constexpr int kNumMaskThreads = 2;

SchedulerLimits LimitsOn(const Executor& executor, SchedulerLimits limits) {
  limits.max_step_rows = std::min(limits.max_step_rows, executor.max_rows());
  limits.max_num_batched_tokens = std::min(limits.max_num_batched_tokens, limits.max_step_rows);
  return limits;
}

}  // namespace

Engine::Engine(std::unique_ptr<Executor> executor, const EngineOptions& options)
    : executor_(std::move(executor)),
      options_(options),
      scheduler_(executor_->plan(), executor_->kv_layout(), executor_->num_pages(),
                 LimitsOn(*executor_, options.limits), RandomBits()),
      kv_checker_(executor_->plan(), executor_->kv_layout()),
      draft_policy_(options.limits.num_drafts, options.adapt_drafts),
      mask_maker_(kNumMaskThreads, [this](MadeMask made) {
        {
          const std::lock_guard lock(mutex_);
          made_masks_.push_back(std::move(made));
        }
        inbox_changed_.notify_all();
      }) {
  CHECK_LE(options.limits.num_drafts, executor_->max_drafts());
  PublishStats();
  thread_ = std::thread([this] { Loop(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  inbox_changed_.notify_all();
  thread_.join();
}

Result<RequestId> Engine::Submit(SequenceSpec spec, EventSink sink) {
  ASSIGN_OR_RETURN(const std::vector<RequestId> ids, Submit(std::move(spec), 1, std::move(sink)));
  return ids[0];
}

Result<std::vector<RequestId>> Engine::Submit(SequenceSpec spec, int num_copies, EventSink sink) {
  CHECK_GT(num_copies, 0);
  CHECK(spec.sampling != nullptr);
  RETURN_IF_ERROR(scheduler_.CheckFits(spec));
  RETURN_IF_ERROR(spec.sampling->Validate(plan().vocab_size));
  if (spec.media != nullptr && !executor_->takes_media()) {
    return MakeError("the model takes no images or audio");
  }
  if (num_copies > 1 && !spec.generated.empty()) {
    return MakeError("resume: one answer can be gone on with, not {}", num_copies);
  }
  if (spec.grammar != nullptr && spec.matcher == nullptr && !spec.generated.empty()) {
    ASSIGN_OR_RETURN(spec.matcher, MatchGenerated(spec.grammar, spec.generated));
  }
  if (num_copies > options_.max_queue) {
    return MakeError("{} sequences were asked for at once, but only {} may wait", num_copies,
                     options_.max_queue);
  }
  if (num_queued_.fetch_add(num_copies) + num_copies > options_.max_queue) {
    num_queued_.fetch_sub(num_copies);
    return Error{fmt::format("the queue is full: at most {} requests may wait; try again later",
                             options_.max_queue),
                 ErrorKind::kBusy};
  }
  const int32_t last_point = static_cast<int32_t>(spec.prompt.size()) - 1;
  if (num_copies > 1 && (spec.cache_points.empty() || spec.cache_points.back() < last_point)) {
    spec.cache_points.push_back(last_point);  // where the copies go on
  }
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    for (int copy_idx = 0; copy_idx < num_copies; ++copy_idx) {
      const RequestId id = ++last_id_;
      SequenceSpec copy = spec;
      if (copy_idx > 0) {
        auto sampling = std::make_shared<SamplingParams>(*spec.sampling);
        sampling->seed += static_cast<uint64_t>(copy_idx);
        copy.sampling = std::move(sampling);
        copy.num_prompt_logprobs = -1;  // The first one's are theirs.
        copy.leader = ids[0];
      }
      ids.push_back(id);
      submissions_.push_back({id, std::move(copy), sink, Clock::now()});
    }
  }
  inbox_changed_.notify_all();
  return ids;
}

void Engine::Cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    cancellations_.push_back(id);
  }
  inbox_changed_.notify_all();
}

Status Engine::BorrowExecutor(std::function<Status(Executor&)> work) {
  Loan loan{std::move(work), {}};
  std::future<Status> outcome = loan.outcome.get_future();
  {
    const std::lock_guard lock(mutex_);
    loans_.push_back(std::move(loan));
  }
  inbox_changed_.notify_all();
  return outcome.get();
}

void Engine::LendExecutor() {
  std::deque<Loan> loans;
  {
    const std::lock_guard lock(mutex_);
    loans.swap(loans_);
  }
  for (Loan& loan : loans) {
    scheduler_.ClearPrefixCache();
    Status status;
    try {
      status = loan.work(*executor_);
    } catch (const std::exception& error) {
      loan.outcome.set_value(MakeError("{}", error.what()));
      throw;
    }
    loan.outcome.set_value(std::move(status));
  }
  has_just_lent_ = !loans.empty();
}

void Engine::RefuseLoans(const std::string& reason) {
  std::deque<Loan> loans;
  {
    const std::lock_guard lock(mutex_);
    loans.swap(loans_);
  }
  for (Loan& loan : loans) loan.outcome.set_value(MakeError("{}", reason));
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

void Engine::PublishStats() {
  const SchedulerStats scheduler = scheduler_.stats();
  const std::lock_guard lock(mutex_);
  published_ = {scheduler,     draft_stats_,       num_steps_,
                num_rows_,     num_output_tokens_, num_forced_tokens_,
                num_finished_, scheduler_.cost(),  step_sizes_};
}

bool Engine::TakeInbox(bool may_wait) {
  std::deque<Submission> submissions;
  std::deque<RequestId> cancellations;
  {
    std::unique_lock lock(mutex_);
    if (may_wait) {
      inbox_changed_.wait(lock, [&] {
        // Where all sequences wait for their masks, a borrower and those behind it wait too.
        const bool may_lend = !loans_.empty() && !scheduler_.has_sequences();
        const bool may_begin = !submissions_.empty() && (loans_.empty() || has_just_lent_);
        return stopping_ || may_begin || !cancellations_.empty() || may_lend ||
               !made_masks_.empty();
      });
    }
    if (stopping_) return false;
    // A borrower waits for what runs: nothing begins, but for what waited during the last loan.
    if (loans_.empty() || has_just_lent_) submissions.swap(submissions_);
    has_just_lent_ = false;
    cancellations.swap(cancellations_);
  }
  for (Submission& submission : submissions) StartRequest(std::move(submission));
  for (const RequestId id : cancellations) {
    if (std::optional<Submission> waiting = TakeSubmission(id)) StartRequest(std::move(*waiting));
    if (open_.contains(id)) End(id, FinishReason::kCancelled, "");
  }
  TakeMadeMasks();
  return true;
}

void Engine::TakeMadeMasks() {
  std::deque<MadeMask> made;
  {
    const std::lock_guard lock(mutex_);
    made.swap(made_masks_);
  }
  for (MadeMask& mask : made) {
    if (mask.status.ok()) {
      scheduler_.TakeMask(mask.id, std::move(mask.matcher), mask.num_steps);
    } else if (open_.contains(mask.id)) {
      RequestEvent event;
      event.finish = FinishReason::kError;
      event.error = mask.status.error().message;
      event.blames_request = mask.status.error().kind == ErrorKind::kInvalid;
      End(mask.id, std::move(event));
    }
  }
}

std::optional<Engine::Submission> Engine::TakeSubmission(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(submissions_.begin(), submissions_.end(),
                                  [&](const Submission& waiting) { return waiting.id == id; });
  if (found == submissions_.end()) return std::nullopt;
  Submission submission = std::move(*found);
  submissions_.erase(found);
  return submission;
}

void Engine::StartRequest(Submission submission) {
  OpenRequest request;
  request.sink = std::move(submission.sink);
  request.submitted = submission.time;
  request.usage.prompt_tokens = static_cast<int32_t>(submission.spec.prompt.size());
  request.usage.given_tokens = static_cast<int32_t>(submission.spec.generated.size());
  request.usage.output_tokens = request.usage.given_tokens;
  const Status added = scheduler_.Add(submission.id, std::move(submission.spec));
  CHECK(added.ok()) << added.error().message;  // Submit checked everything Add refuses.
  open_.emplace(submission.id, std::move(request));
}

void Engine::End(RequestId id, FinishReason reason, std::string error) {
  RequestEvent event;
  event.finish = reason;
  event.error = std::move(error);
  End(id, std::move(event));
}

void Engine::End(RequestId id, RequestEvent event) {
  const auto it = open_.find(id);
  OpenRequest request = std::move(it->second);
  open_.erase(it);
  scheduler_.Cancel(id);
  mask_maker_.Cancel(id);
  if (!request.first_step) num_queued_.fetch_sub(1);
  ++num_finished_;
  const Clock::time_point now = Clock::now();
  event.id = id;
  event.usage = request.usage;
  event.usage.output_tokens += static_cast<int32_t>(event.tokens.size());
  const Clock::time_point first_step = request.first_step.value_or(now);
  const Clock::time_point first_token = request.first_token.value_or(now);
  event.timings.queue_ms = Milliseconds(request.submitted, first_step);
  event.timings.prefill_ms = Milliseconds(first_step, first_token);
  event.timings.decode_ms = Milliseconds(first_token, now);
  PublishStats();  // Whoever sees the end of a request sees it counted.
  request.sink(std::move(event));
}

void Engine::MarkStarted(const StepPlan& plan) {
  const Clock::time_point now = Clock::now();
  for (const StepPlan::Entry& entry : plan.entries) {
    OpenRequest& request = open_.at(entry.id);
    if (request.first_step) continue;
    request.first_step = now;
    request.usage.cached_tokens = scheduler_.Find(entry.id)->num_cached_prompt_tokens;
    num_queued_.fetch_sub(1);
  }
}

bool Engine::SubmitNextStep() {
  if (options_.limits.num_drafts > 0) {
    scheduler_.set_num_drafts(draft_policy_.Choose(num_decoding_));
  }
  std::optional<StepPlan> plan = scheduler_.Plan();
  if (!plan) return false;
  MarkStarted(*plan);
  if (options_.check_kv) {
    if (const auto violation = kv_checker_.FindViolation(plan->batch, executor_->num_pages())) {
      FailStep(*plan, *violation);
      return true;
    }
  }
  ++num_steps_;
  num_rows_ += plan->batch.token_ids.size();
  step_sizes_.Add(plan->batch.token_ids.size());
  const Clock::time_point submitted = Clock::now();
  executor_->Submit(std::move(plan->batch));
  in_flight_.push_back({std::move(*plan), submitted});
  return true;
}

void Engine::MeasureStep(const StepPlan& plan, Clock::time_point submitted, Clock::time_point now,
                         std::optional<double> device_ms) {
  const Clock::time_point began = std::max(submitted, last_collected_);
  last_collected_ = now;
  // Steps overlap with the work between them: by our clock a part of one may pass for its
  // neighbour's.
  const double ms = device_ms.value_or(Milliseconds(began, now));
  scheduler_.Observe(plan.shape, ms);
  if (options_.limits.num_drafts == 0) return;
  int num_decoding = 0;
  int max_drafts = 0;
  int num_drafts = 0;
  bool only_decodes = true;
  for (const StepPlan::Entry& entry : plan.entries) {
    only_decodes = only_decodes && entry.samples && entry.num_rows == 1 + entry.num_drafts;
    num_decoding += entry.samples ? 1 : 0;
    max_drafts = std::max(max_drafts, entry.num_drafts);
    num_drafts += entry.num_drafts;
  }
  if (num_decoding > 0) num_decoding_ = num_decoding;
  // Near their end sequences have fewer drafts: a few of those still make a step of its kind.
  if (only_decodes && 4 * num_drafts >= 3 * num_decoding * max_drafts) {
    draft_policy_.AddStep(num_decoding, max_drafts, 1e-3 * ms);
  }
}

void Engine::CountRound(const SequenceProgress& progress, RequestUsage& usage) {
  usage.draft_tokens += progress.num_drafts;
  usage.accepted_tokens += progress.num_accepted;
  ++draft_stats_.num_rounds;
  draft_stats_.num_drafts += static_cast<uint64_t>(progress.num_drafts);
  draft_stats_.num_accepted += static_cast<uint64_t>(progress.num_accepted);
  draft_stats_.num_round_tokens += progress.tokens.size();
  for (int32_t place = 0; place < progress.num_accepted; ++place) {
    ++draft_stats_.accepted_at[place];
  }
  draft_policy_.AddRound(progress.num_drafts, progress.num_accepted);
  const bool has_collapsed = draft_policy_.has_collapsed();
  if (has_collapsed && !draft_stats_.has_collapsed) {
    spdlog::warn(
        "hardly any draft is accepted: the assistant does not fit this model; --no-spec turns "
        "drafting off");
  }
  draft_stats_.has_collapsed = has_collapsed;
}

void Engine::FailStep(const StepPlan& plan, const Json& violation) {
  std::ofstream(options_.check_kv_report) << violation.dump(2) << "\n";
  spdlog::error("KV check failed: {}; report in {}", violation["problem"].get<std::string>(),
                options_.check_kv_report.string());
  EndRequestsOf(plan, "internal error: the KV check failed");
}

void Engine::EndRequestsOf(const StepPlan& plan, const std::string& error) {
  scheduler_.Abandon(plan);
  for (const StepPlan::Entry& entry : plan.entries) {
    if (open_.contains(entry.id)) End(entry.id, FinishReason::kError, error);
  }
}

void Engine::FailInFlight(const std::string& error) {
  for (size_t step = 1; step < in_flight_.size(); ++step) {
    try {
      executor_->Collect();
    } catch (const std::bad_alloc&) {
    }
  }
  for (; !in_flight_.empty(); in_flight_.pop_back()) EndRequestsOf(in_flight_.back().plan, error);
  scheduler_.ClearPrefixCache();
}

void Engine::CollectStep() {
  StepOutput output;
  try {
    output = executor_->Collect();
  } catch (const std::bad_alloc&) {
    spdlog::error("a step ran out of memory: its {} requests end",
                  in_flight_.front().plan.entries.size());
    return FailInFlight("there is no memory left to compute this request; try again later");
  }
  StepPlan plan = std::move(in_flight_.front().plan);
  const Clock::time_point submitted = in_flight_.front().submitted;
  in_flight_.pop_front();
  const Clock::time_point now = Clock::now();
  MeasureStep(plan, submitted, now, output.device_ms);
  for (SequenceProgress& progress : scheduler_.Complete(std::move(plan), std::move(output))) {
    const auto open = open_.find(progress.id);
    if (open == open_.end()) continue;
    OpenRequest& request = open->second;
    if (!request.first_token && !progress.tokens.empty()) request.first_token = now;
    num_output_tokens_ += progress.tokens.size();
    num_forced_tokens_ += static_cast<uint64_t>(progress.num_forced);
    if (progress.num_drafts > 0) CountRound(progress, request.usage);
    RequestEvent event;
    event.prompt_logprobs = std::move(progress.prompt_logprobs);
    event.tokens = std::move(progress.tokens);
    if (progress.finish) {
      event.finish = progress.finish;
      event.error = std::move(progress.error);
      event.blames_request = progress.blames_request;
      End(progress.id, std::move(event));
      continue;
    }
    event.id = progress.id;
    request.usage.output_tokens += static_cast<int32_t>(event.tokens.size());
    // A late sequence may have none.
    if (!event.tokens.empty() || !event.prompt_logprobs.empty()) request.sink(std::move(event));
  }
  for (LateMask& late : scheduler_.TakeLate()) mask_maker_.Start(std::move(late));
}

void Engine::FailAll(const std::string& error) {
  while (!open_.empty()) End(open_.begin()->first, FinishReason::kError, error);
}

void Engine::Loop() {
  const size_t max_in_flight = options_.overlap ? 2 : 1;
  try {
    // Nothing can be planned: there are no sequences, or all of them wait for their masks.
    bool may_wait = true;
    while (TakeInbox(may_wait)) {
      while (in_flight_.size() < max_in_flight && SubmitNextStep()) {
      }
      may_wait = in_flight_.empty();
      if (!in_flight_.empty()) CollectStep();
      if (in_flight_.empty() && !scheduler_.has_sequences()) LendExecutor();
      PublishStats();
    }
    while (!in_flight_.empty()) CollectStep();
  } catch (const std::exception& error) {
    // A failed device: nothing it holds can be trusted any more.
    spdlog::error("the executor failed: {}", error.what());
    has_failed_ = true;
    FailAll(error.what());
    while (true) {  // Answer whatever still arrives.
      RefuseLoans(error.what());
      std::unique_lock lock(mutex_);
      inbox_changed_.wait(lock,
                          [&] { return stopping_ || !submissions_.empty() || !loans_.empty(); });
      if (stopping_) break;
      std::deque<Submission> submissions;
      submissions.swap(submissions_);
      lock.unlock();
      for (Submission& submission : submissions) {
        const RequestId id = submission.id;
        StartRequest(std::move(submission));
        End(id, FinishReason::kError, error.what());
      }
    }
  }
  std::deque<Submission> late;
  {
    const std::lock_guard lock(mutex_);
    late.swap(submissions_);
  }
  for (Submission& submission : late) StartRequest(std::move(submission));
  while (!open_.empty()) End(open_.begin()->first, FinishReason::kCancelled, "");
  RefuseLoans("the engine was stopped");
  PublishStats();
}

}  // namespace lapidary
