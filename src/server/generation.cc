#include "server/generation.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/excerpt.h"
#include "base/memory_reserve.h"
#include "server/log_failure.h"

namespace lapidary {

size_t GenerationJob::NumBytes() const {
  size_t num_bytes = num_stored_bytes;
  for (const Prompt& prompt : prompts) {
    const size_t num_copies = 1 + static_cast<size_t>(request.num_choices);
    num_bytes += num_copies * (prompt.ids().size() + request.generated.size()) * sizeof(int32_t);
    num_bytes += prompt.echo.text.size() + prompt.echo.offsets.size() * sizeof(size_t);
    if (prompt.request.media == nullptr) continue;
    for (const SoftTokenRun& run : *prompt.request.media) {
      num_bytes += run.rows->size() * sizeof(float);
    }
  }
  return num_bytes;
}

ChoiceStream GenerationJob::MakeStream(const ServedModel& model, const Prompt& prompt) const {
  return {model.tokenizer(), reader, request, prompt.echo.num_characters};
}

ApiStatus GenerationJob::ReplayGenerated(const ServedModel& model) {
  if (request.generated.empty()) return {};
  if (prompts.size() > 1) {
    return BadRequest("resume", "'resume' goes on with one answer, but there are {} prompts",
                      prompts.size());
  }
  resumed = std::make_shared<ResumedChoice>(ResumedChoice{MakeStream(model, prompts[0])});
  const std::optional<size_t> end = resumed->stream.Replay(request.generated, &resumed->open_call);
  if (!end) return {};
  const std::string* stop = resumed->stream.matched_stop();
  return BadRequest("resume", "resume: the answer ended at token {}, {}", *end,
                    stop == nullptr ? "with its only call" : "at a stop string");
}

Generation::Generation(Session& session, const ServedModel& model, ServerMetrics& metrics,
                       WorkerPool& workers, std::shared_ptr<AnswerMemory> memory, GenerationJob job,
                       std::shared_ptr<Responder> responder)
    : session_(session),
      model_(model),
      metrics_(metrics),
      workers_(workers),
      memory_(std::make_shared<AnswerLease>(std::move(memory))),
      job_(std::move(job)),
      responder_(std::move(responder)) {}

void Generation::Start() {
  responder_->access().model =
      job_.request.model.empty() ? model_.name() : Excerpt(job_.request.model);
  if (responder_->gone()) return;
  if (session_.engine().has_failed()) return SendError(EngineFailed());
  try {
    if (const ApiStatus refused = Submit()) return SendError(*refused);
  } catch (...) {
    answered_ = true;
    CancelAll();
    throw;
  }
  responder_->OnCutShort([weak = weak_from_this()](const ApiStatus& why) {
    const auto self = weak.lock();
    if (!self) return;
    if (why) return self->Fail(*why);
    self->answered_ = true;
    self->CancelAll();
    self->DropAnswer();
  });
  responder_->access().prompt_tokens = usage_.prompt_tokens;
  if (!job_.request.stream) return;
  responder_->BeginEvents(job_.format->framing());
  ServerEvents events;
  job_.format->Begin(usage_, &events);
  SendEvents(events);
}

void Generation::SendEvents(const ServerEvents& events) {
  for (const ServerEvent& event : events) responder_->SendEvent(event.name, event.data);
}

ApiStatus Generation::Submit() {
  const GenerationRequest& request = job_.request;
  RETURN_IF_API_ERROR(model_.FindAdapter(request.model, &adapter_));
  const EventSink sink = [self = shared_from_this()](RequestEvent event) {
    std::shared_ptr<RequestEvent> shared;
    Insist([&] { shared = std::make_shared<RequestEvent>(); });
    *shared = std::move(event);
    Insist([&] { self->responder_->Post([self, shared] { self->OnEvent(*shared); }); });
  };
  const int64_t num_choices = std::ssize(job_.prompts) * request.num_choices;
  const int max_queue = session_.engine().options().max_queue;
  if (num_choices > max_queue) {
    return BadRequest("n", "{} answers were asked for at once, but only {} may wait (--max-queue)",
                      num_choices, max_queue);
  }
  for (const GenerationJob::Prompt& prompt : job_.prompts) {
    Request each = prompt.request;
    each.grammar = job_.grammar;
    each.matcher = job_.matcher;
    each.adapter = adapter_.adapter();
    auto handles = session_.Submit(each, request.num_choices, sink);
    if (!handles.ok()) {
      answered_ = true;
      CancelAll();
      if (handles.error().kind == ErrorKind::kBusy) return QueueFull();
      const std::string& message = handles.error().message;
      return BadRequest(message.starts_with("resume") ? "resume" : "", "{}", message);
    }
    usage_.prompt_tokens += std::ssize(prompt.ids());
    for (RequestHandle& handle : *handles) {
      const RequestId id = handle.id();
      choices_.push_back({std::move(handle), job_.resumed ? std::move(job_.resumed->stream)
                                                          : job_.MakeStream(model_, prompt)});
      choice_of_[id] = choices_.size() - 1;
    }
    if (job_.resumed) GoOn(choices_.back());
    const size_t prompt_idx = prompt_logprobs_.size();
    prompt_logprobs_.emplace_back();
    if (each.num_prompt_logprobs < 0 || prompt.ids().size() == 1) StartEcho(prompt_idx);
  }
  return {};
}

void Generation::GoOn(Choice& choice) {
  usage_.completion_tokens = std::ssize(job_.request.generated);
  usage_.reasoning_tokens = choice.stream.num_reasoning_tokens();
  std::optional<ChoiceDelta::ToolCall>& call = job_.resumed->open_call;
  if (!call) return;
  // The client has the beginning of a call only where it was streamed.
  if (job_.request.stream) return job_.format->GoOnWithCall(*call);
  choice.unsent.tool_calls.push_back(std::move(*call));
}

void Generation::StartEcho(size_t prompt_idx) {
  if (!job_.request.echo) return;
  const GenerationJob::Prompt& prompt = job_.prompts[prompt_idx];
  const int32_t num_top = job_.request.sampling.num_logprobs;
  ChoiceDelta echo;
  echo.content = prompt.echo.text;
  for (size_t idx = 0; num_top >= 0 && idx < prompt.ids().size(); ++idx) {
    ChoiceDelta::Logprob logprob;
    logprob.text_offset = prompt.echo.offsets[idx];
    logprob.is_unknown = idx == 0;
    if (idx == 0) {
      logprob.token.id = prompt.ids()[0];
    } else {
      logprob.token = prompt_logprobs_[prompt_idx][idx - 1];
      logprob.token.num_top = std::min(logprob.token.num_top, num_top);
    }
    echo.logprobs.push_back(logprob);
  }
  const size_t num_choices = static_cast<size_t>(job_.request.num_choices);
  for (size_t copy_idx = 0; copy_idx < num_choices; ++copy_idx) {
    Choice& choice = choices_[prompt_idx * num_choices + copy_idx];
    choice.unsent = echo;
    CountBytes(choice);
  }
  // The echo was all they were wanted for.
  if (job_.request.num_prompt_logprobs < 0) prompt_logprobs_[prompt_idx] = {};
}

void Generation::CountBytes(Choice& choice) {
  num_choice_bytes_ -= choice.num_bytes;
  choice.num_bytes = choice.unsent.NumBytes();
  num_choice_bytes_ += choice.num_bytes;
}

void Generation::DropAnswer() {
  if (num_ended_ == choices_.size()) return;  // It is being written, perhaps on another thread.
  for (Choice& choice : choices_) {
    choice.unsent = {};
    CountBytes(choice);
  }
  for (auto& logprobs : prompt_logprobs_) logprobs = {};
  static_cast<void>(memory_->Resize(0));
}

void Generation::CountAllBytes() {
  size_t num_bytes = num_choice_bytes_;
  for (const auto& logprobs : prompt_logprobs_) {
    num_bytes += logprobs.capacity() * sizeof(SampledToken);
  }
  if (!memory_->Resize(num_bytes)) Fail(memory_->Refusal(num_bytes));
}

void Generation::TakePromptLogprobs(const RequestEvent& event, size_t prompt_idx) {
  if (event.prompt_logprobs.empty()) return;
  std::vector<SampledToken>& logprobs = prompt_logprobs_[prompt_idx];
  logprobs.insert(logprobs.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
  if (logprobs.size() + 1 == job_.prompts[prompt_idx].ids().size()) StartEcho(prompt_idx);
}

void Generation::OnEvent(const RequestEvent& event) {
  const auto known = choice_of_.find(event.id);
  if (known == choice_of_.end()) return;  // It was submitted, but there was no memory for more.
  const size_t index = known->second;
  Choice& choice = choices_[index];
  RecordTokens(event, choice);
  if (!answered_) {
    TakePromptLogprobs(event, index / static_cast<size_t>(job_.request.num_choices));
    TakeTokens(event, choice);
    if (job_.request.stream) SendChunk(choice, !event.tokens.empty());
    CountBytes(choice);
    if (!answered_) CountAllBytes();
  }
  if (!event.finish) return;
  RecordEnd(event, choice);
  choice.handle.Release();
  ++num_ended_;
  // Copies find the prompt their leader has put into the cache; that is no saving of the client's.
  if (index % static_cast<size_t>(job_.request.num_choices) == 0) {
    usage_.cached_tokens += event.usage.cached_tokens;
  }
  usage_.drafts.Add(event.usage.drafts);
  for (int source = 0; source < kNumDraftSources; ++source) {
    usage_.drafts_by_source[source].Add(event.usage.drafts_by_source[source]);
  }
  if (!answered_ && num_ended_ == choices_.size()) SendEnd();
}

void Generation::TakeTokens(const RequestEvent& event, Choice& choice) {
  if (choice.finish) return;
  const int num_before = choice.stream.num_reasoning_tokens();
  const ChoiceStream::News news = choice.stream.Read(event, &choice.unsent);
  usage_.completion_tokens += static_cast<int64_t>(news.num_tokens);
  usage_.reasoning_tokens += choice.stream.num_reasoning_tokens() - num_before;
  if (!news.end) return;
  using Reason = AnswerEnd::Reason;
  const AnswerEnd& end = *news.end;
  if (end.reason == Reason::kError) return FailAsEngine(event);
  // Nobody but the engine's end cancels what is neither cut nor left.
  if (end.reason == Reason::kCancelled) return Fail(ShuttingDown());
  if (!event.finish) choice.handle.Cancel();
  choice.finish = FinishInfo{end.reason == Reason::kLength      ? "length"
                             : end.reason == Reason::kToolCalls ? "tool_calls"
                                                                : "stop",
                             nullptr};
  if (!end.stop_string.empty()) choice.finish->stop_reason = end.stop_string;
  if (end.stop_token_id >= 0) choice.finish->stop_reason = end.stop_token_id;
}

void Generation::FailAsEngine(const RequestEvent& event) {
  if (event.error_kind == ErrorKind::kInvalid) {
    return Fail(BadRequest(job_.form_field, "{}", event.error));
  }
  if (event.error_kind == ErrorKind::kBusy) {
    ApiError error = OutOfMemory();
    error.message = event.error;
    return Fail(error);
  }
  spdlog::error("a request failed: {}", event.error);
  Fail(session_.engine().has_failed() ? EngineFailed() : InternalError());
}

void Generation::SendChunk(Choice& choice, bool has_tokens) {
  if (answered_ || choice.finish_sent) return;
  const bool has_news = choice.unsent.has_text() || choice.finish ||
                        (job_.request.answers_in_tokens && !choice.unsent.token_ids.empty());
  // The first token is told of even if it shows nothing: clients measure and await it.
  const bool begins = has_tokens && !choice.begun;
  if (!has_news && !begins) return;
  const int index = static_cast<int>(choice_of_.at(choice.handle.id()));
  const bool is_first = !choice.begun;
  choice.begun = true;
  ServerEvents events;
  // Without text nothing is taken out: what comes with it (logprobs) waits for the next one.
  const ChoiceDelta news = has_news ? std::exchange(choice.unsent, {}) : ChoiceDelta();
  job_.format->Delta(index, news, choice.finish ? &*choice.finish : nullptr, is_first, usage_,
                     &events);
  SendEvents(events);
  choice.finish_sent = choice.finish.has_value();
}

void Generation::SendEnd() {
  answered_ = true;
  responder_->access().completion_tokens = usage_.completion_tokens;
  if (job_.request.stream) {
    ServerEvents events;
    job_.format->End(usage_, &events);
    SendEvents(events);
    responder_->EndEvents();
    return;
  }
  std::vector<FinishedChoice> choices;
  for (Choice& choice : choices_) {
    const size_t prompt_idx = choices.size() / static_cast<size_t>(job_.request.num_choices);
    choices.push_back({std::move(choice.unsent), std::move(*choice.finish),
                       &job_.prompts[prompt_idx].ids(), &prompt_logprobs_[prompt_idx]});
  }
  // Some milliseconds a megabyte: not for the thread of all connections.
  constexpr size_t kLongBytes = size_t{1} << 20;
  if (memory_->num_bytes() < kLongBytes) return SendWhole(std::move(choices));
  workers_.PostLong([self = shared_from_this(),
                     shared = std::make_shared<std::vector<FinishedChoice>>(std::move(choices))] {
    self->SendWhole(std::move(*shared));
  });
}

void Generation::SendWhole(std::vector<FinishedChoice> choices) {
  ApiStatus refused;
  std::shared_ptr<std::string> body;
  try {
    AnswerText text(memory_.get());
    job_.format->Whole(std::move(choices), usage_, &text);
    if (!text.ok()) refused = text.Refusal();
    body = std::make_shared<std::string>(text.Take());
  } catch (const std::exception& error) {
    Insist([&] { refused = ApiErrorOf("an answer could not be written", error); });
  }
  Insist([&] {
    responder_->Post([self = shared_from_this(), refused, body] {
      if (refused) return self->SendError(*refused);
      HttpResponse whole;
      whole.content_type = self->job_.format->content_type();
      whole.body = std::move(*body);
      self->prompt_logprobs_ = {};
      static_cast<void>(self->memory_->Resize(0));  // The connection counts it from here on.
      self->responder_->Send(std::move(whole));
    });
  });
}

void Generation::Fail(const ApiError& error) {
  answered_ = true;
  CancelAll();
  DropAnswer();
  if (!job_.request.stream) return SendError(error);
  ServerEvents events;
  job_.format->Fail(error, &events);
  SendEvents(events);
  responder_->EndEvents();
}

void Generation::SendError(const ApiError& error) {
  HttpResponse response = ErrorResponse(error);
  response.body = DumpJson(job_.format->ErrorBody(error));
  responder_->Send(std::move(response));
}

void Generation::CancelAll() {
  for (const Choice& choice : choices_) choice.handle.Cancel();
}

double Generation::SecondsSinceArrival() const {
  return std::chrono::duration<double>(Clock::now() - job_.arrival).count();
}

void Generation::RecordTokens(const RequestEvent& event, Choice& choice) {
  if (event.tokens.empty()) return;
  adapter_.HasBegun();
  metrics_.AddTokens(event.tokens.size());
  const Clock::time_point now = Clock::now();
  if (choice.last_token) {
    metrics_.AddInterTokenLatency(std::chrono::duration<double>(now - *choice.last_token).count());
  } else {
    metrics_.AddFirstToken(SecondsSinceArrival());
  }
  choice.last_token = now;
}

void Generation::RecordEnd(const RequestEvent& event, const Choice& choice) {
  std::string reason = FinishReasonName(*event.finish);
  if (event.finish == FinishReason::kCancelled) reason = "abort";
  // What the client was told, where that differs: a call, or a stop string.
  if (choice.finish && event.finish != FinishReason::kError) reason = choice.finish->reason;
  metrics_.AddFinished(reason, event.usage, event.timings, SecondsSinceArrival());
  if (answered_ || choice_of_.at(event.id) > 0) return;
  responder_->access().run = {.queue_ms = event.timings.queue_ms,
                              .prefill_ms = event.timings.prefill_ms,
                              .decode_ms = event.timings.decode_ms,
                              .end_nanoseconds = UnixNanoseconds()};
}

}  // namespace lapidary
