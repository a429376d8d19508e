#include "engine/engine.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>

#include "adapter/adapter.h"
#include "base/memory_reserve.h"
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

constexpr const char* kNoMemory =
    "there is no memory left to compute this request; try again later";

SchedulerLimits LimitsOn(const Executor& executor, SchedulerLimits limits) {
  limits.max_step_rows = std::min(limits.max_step_rows, executor.max_rows());
  limits.max_num_batched_tokens = std::min(limits.max_num_batched_tokens, limits.max_step_rows);
  if (!executor.drafts_text()) limits.num_forced_drafts = 0;
  if (!executor.drafts_repeated_text()) limits.num_ngram_drafts = 0;
  return limits;
}

}  // namespace

Engine::Engine(std::unique_ptr<Executor> executor, const EngineOptions& options)
    : executor_(std::move(executor)),
      options_(options),
      limits_(LimitsOn(*executor_, options.limits)),
      num_pages_(executor_->num_pages()),
      draft_policy_(options.limits.num_drafts, options.adapt_drafts),
      mask_maker_(kNumMaskThreads, [this](MadeMask made) {
        {
          const std::lock_guard lock(mutex_);
          Insist([&] { made_masks_.push_back(std::move(made)); });
        }
        inbox_changed_.notify_all();
      }) {
  CHECK_LE(options.limits.num_drafts, executor_->max_drafts());
  MakeScheduler();
  PublishStats();
  thread_ = std::thread([this] { Loop(); });
}

void Engine::MakeScheduler() {
  scheduler_.reset();
  scheduler_.emplace(plan(), kv_layout(), num_pages_, limits_, RandomBits());
  scheduler_->set_cache_observer(options_.cache_changes);
  kv_checker_.emplace(plan(), kv_layout());
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
  RETURN_IF_ERROR(Scheduler::CheckFits(spec, plan(), kv_layout(), num_pages_, limits_));
  RETURN_IF_ERROR(spec.sampling->Validate(plan().vocab_size));
  if (spec.media != nullptr && !executor_->takes_media()) {
    return MakeError("the model takes no images or audio");
  }
  if (spec.adapter != nullptr) {
    if (!executor_->takes_adapters()) {
      return MakeError(
          "LoRA adapters run on the CPU without tensor parallelism only: use --device cpu and "
          "--tensor-parallel-size 1, or merge the adapter into the checkpoint");
    }
    // Computed with another adapter, the same tokens are another prefix.
    spec.identity.adapter = spec.adapter->digest();
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
  const int32_t last_point = static_cast<int32_t>(spec.prompt.size()) - 1;
  if (num_copies > 1 && (spec.cache_points.empty() || spec.cache_points.back() < last_point)) {
    spec.cache_points.push_back(last_point);  // where the copies go on
  }
  std::vector<RequestId> ids;
  ids.reserve(num_copies);
  std::deque<Submission> copies;
  for (int copy_idx = 0; copy_idx < num_copies; ++copy_idx) {
    SequenceSpec copy = spec;
    if (copy_idx > 0) {
      auto sampling = std::make_shared<SamplingParams>(*spec.sampling);
      sampling->seed += static_cast<uint64_t>(copy_idx);
      copy.sampling = std::move(sampling);
      copy.num_prompt_logprobs = -1;  // The first one's are theirs.
    }
    copies.push_back({0, std::move(copy), sink, Clock::now()});
  }
  if (num_queued_.fetch_add(num_copies) + num_copies > options_.max_queue) {
    num_queued_.fetch_sub(num_copies);
    return Error{fmt::format("the queue is full: at most {} requests may wait; try again later",
                             options_.max_queue),
                 ErrorKind::kBusy};
  }
  {
    const std::lock_guard lock(mutex_);
    const size_t num_before = submissions_.size();
    try {
      submissions_.resize(num_before + copies.size());
    } catch (const std::bad_alloc&) {
      num_queued_.fetch_sub(num_copies);
      throw;
    }
    for (size_t idx = 0; idx < copies.size(); ++idx) {
      copies[idx].id = ++last_id_;
      if (idx > 0) copies[idx].spec.leader = ids[0];
      ids.push_back(copies[idx].id);
      submissions_[num_before + idx] = std::move(copies[idx]);
    }
  }
  inbox_changed_.notify_all();
  return ids;
}

void Engine::Cancel(RequestId id) noexcept {
  const ReserveScope reserve;
  try {
    const std::lock_guard lock(mutex_);
    cancellations_.push_back(id);
  } catch (const std::bad_alloc&) {
    return;
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
    scheduler_->ClearPrefixCache();
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
  if (options_.cache_changes != nullptr) options_.cache_changes->HandOver();
  const SchedulerStats scheduler = scheduler_->stats();
  const std::lock_guard lock(mutex_);
  published_ = {scheduler,          draft_stats_,  num_steps_,         num_rows_,
                num_output_tokens_, num_finished_, scheduler_->cost(), step_sizes_};
}

bool Engine::TakeInbox(bool may_wait) {
  std::deque<RequestId> cancellations;
  {
    std::unique_lock lock(mutex_);
    if (may_wait) {
      inbox_changed_.wait(lock, [&] {
        // Where all sequences wait for their masks, a borrower and those behind it wait too.
        const bool may_lend = !loans_.empty() && !scheduler_->has_sequences();
        const bool may_begin = !submissions_.empty() && (loans_.empty() || has_just_lent_);
        return stopping_ || may_begin || !cancellations_.empty() || may_lend ||
               !made_masks_.empty();
      });
    }
    if (stopping_) return false;
    // A borrower waits for what runs: nothing begins, but for what waited during the last loan.
    if (loans_.empty() || has_just_lent_) arrived_.swap(submissions_);
    has_just_lent_ = false;
    cancellations.swap(cancellations_);
  }
  StartArrived();
  for (const RequestId id : cancellations) {
    if (std::optional<Submission> waiting = TakeSubmission(id)) {
      EndUnstarted(*waiting, FinishReason::kCancelled, ErrorKind::kFault, "");
    }
    if (open_.contains(id)) End(id, FinishReason::kCancelled, "");
  }
  TakeMadeMasks();
  return true;
}

void Engine::StartArrived() {
  for (; !arrived_.empty(); arrived_.pop_front()) StartRequest(arrived_.front());
}

void Engine::TakeMadeMasks() {
  std::deque<MadeMask> made;
  {
    const std::lock_guard lock(mutex_);
    made.swap(made_masks_);
  }
  for (MadeMask& mask : made) {
    if (mask.status.ok()) {
      scheduler_->TakeMask(mask.id, std::move(mask.matcher), mask.num_steps);
    } else if (open_.contains(mask.id)) {
      RequestEvent event;
      event.finish = FinishReason::kError;
      event.error = mask.status.error().message;
      event.error_kind = mask.status.error().kind;
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

void Engine::StartRequest(Submission& submission) {
  OpenRequest& request = open_[submission.id];
  request.submitted = submission.time;
  request.usage.prompt_tokens = static_cast<int32_t>(submission.spec.prompt.size());
  request.usage.given_tokens = static_cast<int32_t>(submission.spec.generated.size());
  request.usage.output_tokens = request.usage.given_tokens;
  request.sink = std::exchange(submission.sink, nullptr);
  const Status added = scheduler_->Add(submission.id, std::move(submission.spec));
  CHECK(added.ok()) << added.error().message;  // Submit checked everything Add refuses.
}

void Engine::EndUnstarted(Submission& submission, FinishReason reason, ErrorKind kind,
                          const std::string& error) {
  RequestEvent event;
  event.id = submission.id;
  event.finish = reason;
  event.error = error;
  event.error_kind = kind;
  event.usage.prompt_tokens = static_cast<int32_t>(submission.spec.prompt.size());
  event.timings.queue_ms = Milliseconds(submission.time, Clock::now());
  num_queued_.fetch_sub(1);
  ++num_finished_;
  PublishStats();
  submission.sink(std::move(event));
}

void Engine::End(RequestId id, FinishReason reason, const std::string& error, ErrorKind kind) {
  RequestEvent event;
  event.finish = reason;
  event.error = error;
  event.error_kind = kind;
  End(id, std::move(event));
}

void Engine::End(RequestId id, RequestEvent event) {
  scheduler_->Cancel(id);  // If it throws, the request is still open.
  mask_maker_.Cancel(id);
  const auto it = open_.find(id);
  OpenRequest request = std::move(it->second);
  open_.erase(it);
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
    request.usage.cached_tokens = scheduler_->Find(entry.id)->num_cached_prompt_tokens;
    num_queued_.fetch_sub(1);
  }
}

double Engine::RowTokens() const {
  const StepCost& cost = scheduler_->cost();
  if (!cost.is_known() || last_shape_.num_decode_rows == 0) return 0.0;
  StepShape larger = last_shape_;
  larger.AddDecode(1,
                   static_cast<int32_t>(last_shape_.num_decode_keys / last_shape_.num_decode_rows));
  const double ms = cost.DecodeMilliseconds(last_shape_);
  if (ms <= 0.0) return 0.0;
  return std::max(num_decoding_ * (cost.DecodeMilliseconds(larger) - ms) / ms, 0.0);
}

void Engine::ChooseText(int num_assistant_drafts) {
  const SchedulerLimits& limits = scheduler_->limits();
  if (limits.num_forced_drafts == 0 && limits.num_ngram_drafts == 0) return;
  const double row_tokens = RowTokens();
  const double assistant_tokens =
      draft_policy_.ExpectedTokens(num_assistant_drafts) - num_assistant_drafts * row_tokens;
  scheduler_->set_text_quota(
      text_policy_.Choose({.forced = limits.num_forced_drafts, .ngram = limits.num_ngram_drafts},
                          row_tokens, num_assistant_drafts > 0 ? assistant_tokens : 1.0));
}

bool Engine::SubmitNextStep() {
  int num_drafts = 0;
  if (options_.limits.num_drafts > 0) {
    num_drafts = draft_policy_.Choose(num_decoding_);
    scheduler_->set_num_drafts(num_drafts);
  }
  if (options_.adapt_drafts) ChooseText(num_drafts);
  std::optional<StepPlan> plan = scheduler_->Plan();
  if (!plan) return false;
  MarkStarted(*plan);
  if (options_.check_kv) {
    if (const auto violation = kv_checker_->FindViolation(plan->batch, executor_->num_pages())) {
      FailStep(*plan, *violation);
      return true;
    }
  }
  slots_are_clear_ = false;
  ++num_steps_;
  num_rows_ += plan->batch.token_ids.size();
  step_sizes_.Add(plan->batch.token_ids.size());
  const Clock::time_point submitted = Clock::now();
  StepBatch batch = std::move(plan->batch);
  in_flight_.push_back({std::move(*plan), submitted});
  try {
    executor_->Submit(std::move(batch));
  } catch (...) {
    in_flight_.pop_back();  // It was not taken.
    throw;
  }
  return true;
}

void Engine::MeasureStep(const StepPlan& plan, const StepOutput& output,
                         Clock::time_point submitted, Clock::time_point now) {
  const Clock::time_point began = std::max(submitted, last_collected_);
  last_collected_ = now;
  // Steps overlap with the work between them: by our clock a part of one may pass for its
  // neighbour's.
  const double ms = output.device_ms.value_or(Milliseconds(began, now));
  const StepShape run = plan.ShapeRun(output);
  scheduler_->Observe(run, ms);
  if (run.num_chunk_rows == 0) last_shape_ = run;
  int num_decoding = 0;
  int max_drafts = 0;
  int num_drafts = 0;
  bool only_decodes = true;
  for (size_t idx = 0; idx < plan.entries.size(); ++idx) {
    const StepPlan::Entry& entry = plan.entries[idx];
    const SequenceOutput& result = output.sequences[idx];
    const bool has_text = entry.quota && result.draft_source != DraftSource::kAssistant;
    const int32_t num_made = entry.quota ? result.num_drafts : entry.num_drafts;
    // How long the assistant's rounds take is not to be seen beside others.
    only_decodes =
        only_decodes && entry.samples && entry.num_rows == 1 + entry.num_drafts && !has_text;
    num_decoding += entry.samples ? 1 : 0;
    max_drafts = std::max(max_drafts, num_made);
    num_drafts += num_made;
  }
  if (num_decoding > 0) num_decoding_ = num_decoding;
  // Near their end sequences have fewer drafts: a few of those still make a step of its kind.
  if (only_decodes && 4 * num_drafts >= 3 * num_decoding * max_drafts) {
    draft_policy_.AddStep(num_decoding, max_drafts, 1e-3 * ms);
  }
}

void Engine::CountRound(const SequenceProgress& progress, RequestUsage& usage) {
  const auto source = static_cast<size_t>(progress.draft_source);
  for (DraftUsage* drafts : {&usage.drafts, &usage.drafts_by_source[source]}) {
    drafts->draft_tokens += progress.num_drafts;
    drafts->accepted_tokens += progress.num_accepted;
  }
  DraftCounts& of_source = draft_stats_.by_source[source];
  for (DraftCounts* counts : {static_cast<DraftCounts*>(&draft_stats_), &of_source}) {
    ++counts->num_rounds;
    counts->num_drafts += static_cast<uint64_t>(progress.num_drafts);
    counts->num_accepted += static_cast<uint64_t>(progress.num_accepted);
  }
  draft_stats_.num_round_tokens += progress.tokens.size();
  for (int32_t place = 0; place < progress.num_accepted; ++place) {
    ++draft_stats_.accepted_at[place];
  }
  if (progress.draft_source != DraftSource::kAssistant) {
    text_policy_.AddRound(progress.draft_source, progress.match_length, progress.num_drafts,
                          progress.num_accepted);
    return;
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
  EndRequestsOf(plan, "internal error: the KV check failed", ErrorKind::kFault);
}

void Engine::EndRequestsOf(const StepPlan& plan, const std::string& error, ErrorKind kind) {
  scheduler_->Abandon(plan);
  for (const StepPlan::Entry& entry : plan.entries) {
    if (open_.contains(entry.id)) End(entry.id, FinishReason::kError, error, kind);
  }
}

std::deque<Engine::SubmittedStep> Engine::DropInFlight() {
  for (size_t step = 0; step < in_flight_.size(); ++step) {
    try {
      executor_->Collect();
    } catch (const std::bad_alloc&) {
    }
  }
  std::deque<SubmittedStep> dropped;
  dropped.swap(in_flight_);
  return dropped;
}

void Engine::FailFirstInFlight() {
  SubmittedStep first = std::move(in_flight_.front());
  in_flight_.pop_front();
  std::deque<SubmittedStep> steps = DropInFlight();
  for (; !steps.empty(); steps.pop_back()) {
    EndRequestsOf(steps.back().plan, kNoMemory, ErrorKind::kBusy);
  }
  EndRequestsOf(first.plan, kNoMemory, ErrorKind::kBusy);
  scheduler_->ClearPrefixCache();
}

void Engine::StartAfresh() {
  const size_t num_requests = open_.size() + arrived_.size();
  DropInFlight();
  // Each of these may have to wait for memory that others give back.
  Insist([&] { spdlog::error("the engine ran out of memory: its {} requests end", num_requests); });
  Insist([&] { MakeScheduler(); });
  Insist([&] {
    for (; !arrived_.empty(); arrived_.pop_front()) {
      if (!arrived_.front().sink) continue;  // It is among the open ones.
      EndUnstarted(arrived_.front(), FinishReason::kError, ErrorKind::kBusy, kNoMemory);
    }
    while (!open_.empty()) {
      End(open_.begin()->first, FinishReason::kError, kNoMemory, ErrorKind::kBusy);
    }
  });
}

void Engine::CollectStep() {
  StepOutput output;
  try {
    output = executor_->Collect();
  } catch (const std::bad_alloc&) {
    spdlog::error("a step ran out of memory: its {} requests end",
                  in_flight_.front().plan.entries.size());
    return FailFirstInFlight();
  }
  StepPlan plan = std::move(in_flight_.front().plan);
  const Clock::time_point submitted = in_flight_.front().submitted;
  in_flight_.pop_front();
  const Clock::time_point now = Clock::now();
  MeasureStep(plan, output, submitted, now);
  for (SequenceProgress& progress : scheduler_->Complete(std::move(plan), std::move(output))) {
    const auto open = open_.find(progress.id);
    if (open == open_.end()) continue;
    OpenRequest& request = open->second;
    if (!request.first_token && !progress.tokens.empty()) request.first_token = now;
    num_output_tokens_ += progress.tokens.size();
    if (progress.num_drafts > 0) CountRound(progress, request.usage);
    RequestEvent event;
    event.prompt_logprobs = std::move(progress.prompt_logprobs);
    event.tokens = std::move(progress.tokens);
    if (progress.finish) {
      event.finish = progress.finish;
      event.error = std::move(progress.error);
      event.error_kind = progress.blames_request ? ErrorKind::kInvalid : ErrorKind::kFault;
      End(progress.id, std::move(event));
      continue;
    }
    event.id = progress.id;
    request.usage.output_tokens += static_cast<int32_t>(event.tokens.size());
    // A late sequence may have none.
    if (!event.tokens.empty() || !event.prompt_logprobs.empty()) request.sink(std::move(event));
  }
  for (LateMask& late : scheduler_->TakeLate()) mask_maker_.Start(std::move(late));
}

void Engine::FailAll(const std::string& error) {
  while (!open_.empty()) End(open_.begin()->first, FinishReason::kError, error);
}

void Engine::Serve() {
  const size_t max_in_flight = options_.overlap ? 2 : 1;
  // Nothing can be planned: there are no sequences, or all of them wait for their masks.
  bool may_wait = true;
  while (true) {
    if (may_wait && options_.cache_changes != nullptr) options_.cache_changes->HandOverAll();
    if (!TakeInbox(may_wait)) break;
    while (in_flight_.size() < max_in_flight && SubmitNextStep()) {
    }
    may_wait = in_flight_.empty();
    if (!in_flight_.empty()) CollectStep();
    if (in_flight_.empty() && !scheduler_->has_sequences()) {
      if (!std::exchange(slots_are_clear_, true)) executor_->ForgetSlots();
      LendExecutor();
    }
    PublishStats();
  }
  while (!in_flight_.empty()) CollectStep();
}

void Engine::Loop() {
  // All requests depend on this thread, and what it allocates is small: it comes first.
  const ReserveScope reserve;
  try {
    for (bool has_ended = false; !has_ended;) {
      try {
        Serve();
        has_ended = true;
      } catch (const std::bad_alloc&) {
        StartAfresh();
      }
    }
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
      arrived_.swap(submissions_);
      lock.unlock();
      for (; !arrived_.empty(); arrived_.pop_front()) {
        EndUnstarted(arrived_.front(), FinishReason::kError, ErrorKind::kFault, error.what());
      }
    }
  }
  {
    const std::lock_guard lock(mutex_);
    arrived_.swap(submissions_);
  }
  for (; !arrived_.empty(); arrived_.pop_front()) {
    EndUnstarted(arrived_.front(), FinishReason::kCancelled, ErrorKind::kFault, "");
  }
  while (!open_.empty()) End(open_.begin()->first, FinishReason::kCancelled, "");
  RefuseLoans("the engine was stopped");
  PublishStats();
}

}  // namespace lapidary
