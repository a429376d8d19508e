#include "library/stream_impl.h"

namespace lapidary::v0 {

Stream::Impl::Impl(std::shared_ptr<SessionCore> session)
    : core(std::move(session)), mailbox(core->OpenMailbox()) {}

Stream::Impl::~Impl() {
  if (!core->is_forked()) return;
  // The engine's locks may have been held when this process was made.
  for (auto& [id, answer] : answers) answer.handle.Release();
}

uint64_t Stream::Impl::Add(const Request& wanted) {
  lapidary::Session& session = core->session();
  const PreparedRequest prepared = core->Prepare(wanted);
  const Result<Tokenizer>& known = session.text().tokenizer;
  const AnswerParts parts(known.ok() ? &*known : nullptr, prepared.reader);
  const std::lock_guard lock(mutex);
  std::vector<RequestHandle> handles = ValueOrThrow(
      session.Submit(prepared.requests[0], wanted.num_answers,
                     [to = mailbox](RequestEvent event) { to->Post(std::move(event)); }));
  const uint64_t number = ++last_request;
  num_open_answers[number] = wanted.num_answers;
  for (int index = 0; index < wanted.num_answers; ++index) {
    RequestHandle& handle = handles[static_cast<size_t>(index)];
    const RequestId id = handle.id();
    answers.emplace(id, OpenAnswer{number, index, std::move(handle), parts});
  }
  return number;
}

void Stream::Impl::Cancel(uint64_t request) {
  const std::lock_guard lock(mutex);
  for (const auto& [id, answer] : answers) {
    if (answer.request == request) answer.handle.Cancel();
  }
}

void Stream::Impl::CancelAll() {
  const std::lock_guard lock(mutex);
  for (const auto& [id, answer] : answers) answer.handle.Cancel();
}

std::vector<Update> Stream::Impl::Take(std::chrono::milliseconds timeout) {
  const std::vector<RequestEvent> events = mailbox->TakeAll(timeout);
  core->session();  // Throws what keeps it from running.
  std::vector<Update> updates;
  updates.reserve(events.size());
  const std::lock_guard lock(mutex);
  for (const RequestEvent& event : events) updates.push_back(MakeUpdate(event));
  return updates;
}

Update Stream::Impl::MakeUpdate(const RequestEvent& event) {
  const auto found = answers.find(event.id);
  OpenAnswer& answer = found->second;
  Update update{.request = answer.request, .answer_index = answer.index};
  for (const SampledToken& token : event.prompt_logprobs) {
    update.prompt_logprobs.push_back(MakeToken(token));
  }
  const bool was_complete = answer.parts.is_complete();
  update.news = answer.parts.Take(event);
  if (!event.finish) {
    if (answer.parts.is_complete() && !was_complete) answer.handle.Cancel();
    return update;
  }
  update.news.is_device_error =
      event.finish == FinishReason::kError && core->session().engine().has_failed();
  answer.handle.Release();
  answers.erase(found);
  const auto open = num_open_answers.find(update.request);
  update.is_last = --open->second == 0;
  if (update.is_last) num_open_answers.erase(open);
  return update;
}

Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;

uint64_t Stream::Add(const Request& request) { return impl_->Add(request); }
void Stream::Cancel(uint64_t request) { impl_->Cancel(request); }
void Stream::CancelAll() { impl_->CancelAll(); }
std::vector<Update> Stream::Take(std::chrono::milliseconds timeout) { return impl_->Take(timeout); }
int Stream::ready_fd() const { return impl_->mailbox->fd(); }

size_t Stream::num_open() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->num_open_answers.size();
}

}  // namespace lapidary::v0
