#include "apps/chat_session.h"

#include <algorithm>

#include "apps/answer_printer.h"
#include "front/answer_stream.h"

namespace lapidary {

ChatSession::ChatSession(Engine& engine, const TextModel& model, ChatOptions options)
    : engine_(engine), model_(model), options_(std::move(options)) {}

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
  ASSIGN_OR_RETURN(const ChatPrompt prompt, EncodeChatPrompt(model_, conversation_.Input()));
  if (std::ssize(prompt.ids) >= options_.context) {
    return MakeError(
        "the context is full: it holds {} tokens and the conversation has {}; /reset starts a new "
        "one",
        options_.context, prompt.ids.size());
  }
  SequenceSpec spec = MakeSpec(prompt);
  const int32_t max_new_tokens = spec.max_new_tokens;
  ++num_turns_;
  ParsedOutput output;
  RequestEvent last;
  {
    ASSIGN_OR_RETURN(RequestStream stream, RequestStream::Start(engine_, std::move(spec)));
    set_current(&stream);
    last = Follow(stream, prompt.starts_in_thought, output);
    set_current(nullptr);
  }
  if (last.finish == FinishReason::kError) return MakeError("{}", last.error);
  conversation_.AddAnswer(output);
  Report(last, max_new_tokens);
  return {};
}

SequenceSpec ChatSession::MakeSpec(const ChatPrompt& prompt) const {
  SequenceSpec spec;
  spec.prompt = prompt.ids;
  spec.cache_points = prompt.cache_points;
  spec.cache_at_end = true;
  spec.stop_ids = options_.stop_ids;
  const int32_t room = options_.context - static_cast<int32_t>(prompt.ids.size());
  spec.max_new_tokens = options_.max_tokens > 0 ? std::min(options_.max_tokens, room) : room;
  auto sampling = std::make_shared<SamplingParams>(options_.sampling);
  sampling->seed += num_turns_;
  spec.sampling = std::move(sampling);
  return spec;
}

RequestEvent ChatSession::Follow(RequestStream& stream, bool starts_in_thought,
                                 ParsedOutput& output) {
  AnswerStreamOptions options;
  options.parser.emplace();
  options.parser->starts_in_thought = starts_in_thought;
  options.parser->accept_bare_thought = !conversation_.thinking();
  AnswerStream answer(*model_.tokenizer, std::move(options));
  AnswerPrinter printer;
  std::vector<OutputEvent> parsed;
  const auto show = [&] {
    for (const OutputEvent& event : parsed) {
      output.Add(event);
      printer.Print(event);
    }
    parsed.clear();
  };
  while (true) {
    RequestEvent event = stream.Next();
    for (const SampledToken& token : event.tokens) {
      answer.Push(token.id, &parsed);
      show();
    }
    if (!event.finish) continue;
    answer.Finish(&parsed);
    show();
    printer.Finish();
    return event;
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

void ChatSession::set_current(RequestStream* stream) {
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
