#include "apps/chat_session.h"

#include <algorithm>

#include "apps/answer_printer.h"

namespace lapidary {

ChatSession::ChatSession(Session& session, ChatOptions options)
    : session_(session), options_(std::move(options)) {}

void ChatSession::Answer(const std::string& message) {
  set_answering(true);
  conversation_.AddUser(message);
  if (const Status status = TryAnswer(); !status.ok()) {
    conversation_.DropQuestion();
    PrintNotice(status.error().message);
  }
  set_answering(false);
}

Status ChatSession::TryAnswer() {
  ASSIGN_OR_RETURN(ChatPrompt prompt, EncodeChatPrompt(session_.text(), conversation_.Input()));
  if (std::ssize(prompt.ids) >= options_.context) {
    return MakeError(
        "the context is full: it holds {} tokens and the conversation has {}; /reset starts a new "
        "one",
        options_.context, prompt.ids.size());
  }
  AnswerStreamOptions text_options;
  text_options.parser.emplace();
  text_options.parser->starts_in_thought = prompt.starts_in_thought;
  text_options.parser->accept_bare_thought = !conversation_.thinking();
  ASSIGN_OR_RETURN(const Request request, MakeRequest(std::move(prompt)));
  ++num_turns_;
  ParsedOutput output;
  RequestEvent last;
  {
    ASSIGN_OR_RETURN(RequestStream tokens, session_.Start(request));
    TextStream stream(std::move(tokens), &*session_.text().tokenizer, std::move(text_options));
    set_current(&stream);
    last = Follow(stream, output);
    set_current(nullptr);
  }
  if (last.finish == FinishReason::kError) return MakeError("{}", last.error);
  conversation_.AddAnswer(output);
  Report(last, *request.max_new_tokens);
  return {};
}

Result<Request> ChatSession::MakeRequest(ChatPrompt prompt) const {
  Request request;
  if (options_.form) {
    using Thought = grammar::Constraint::Thought;
    ASSIGN_OR_RETURN(request.grammar,
                     options_.form->Compile(prompt.starts_in_thought   ? Thought::kIsOpen
                                            : conversation_.thinking() ? Thought::kMayOpen
                                                                       : Thought::kNone));
  }
  const int32_t room = options_.context - static_cast<int32_t>(prompt.ids.size());
  request.max_new_tokens = options_.max_tokens > 0 ? std::min(options_.max_tokens, room) : room;
  request.prompt = std::move(prompt);
  auto sampling = std::make_shared<SamplingParams>(options_.sampling);
  sampling->seed += num_turns_;
  request.sampling = std::move(sampling);
  return request;
}

RequestEvent ChatSession::Follow(TextStream& stream, ParsedOutput& output) {
  AnswerPrinter printer;
  while (true) {
    TextEvent event = stream.Next();
    for (const OutputEvent& part : event.output) {
      output.Add(part);
      printer.Print(part);
    }
    if (!event.request.finish) continue;
    printer.Finish();
    return std::move(event.request);
  }
}

void ChatSession::Report(const RequestEvent& last, int32_t max_new_tokens) const {
  if (last.finish == FinishReason::kCancelled) PrintNotice("(stopped)");
  if (last.finish == FinishReason::kLength) {
    PrintNotice(max_new_tokens == options_.max_tokens
                    ? fmt::format("(cut at {} tokens: --max-tokens)", max_new_tokens)
                    : fmt::format("(cut: the context of {} tokens is full; /reset starts a new "
                                  "conversation)",
                                  options_.context));
  }
  if (!options_.stats) return;
  const int32_t num_decoded = last.usage.output_tokens - 1;  // The first is the prefill's.
  const double rate = num_decoded > 0 && last.timings.decode_ms > 0
                          ? 1e3 * num_decoded / last.timings.decode_ms
                          : 0.0;
  PrintNotice(
      fmt::format("{} tokens, {:.1f} tokens/s; first after {:.0f} ms, {} of {} prompt "
                  "tokens cached",
                  last.usage.output_tokens, rate, last.timings.queue_ms + last.timings.prefill_ms,
                  last.usage.cached_tokens, last.usage.prompt_tokens));
}

bool ChatSession::Interrupt() {
  const std::lock_guard lock(mutex_);
  if (!answering_) return false;
  interrupted_ = true;
  if (current_ != nullptr) current_->Cancel();
  return true;
}

void ChatSession::set_current(const TextStream* stream) {
  const std::lock_guard lock(mutex_);
  current_ = stream;
  if (current_ != nullptr && interrupted_) current_->Cancel();
}

void ChatSession::set_answering(bool answering) {
  const std::lock_guard lock(mutex_);
  answering_ = answering;
  interrupted_ = false;
}

}  // namespace lapidary
