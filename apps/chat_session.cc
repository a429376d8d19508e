#include "apps/chat_session.h"

#include <algorithm>

#include "apps/answer_printer.h"
#include "base/read_file.h"
#include "media/decode_audio.h"
#include "media/decode_image.h"

namespace lapidary {

ChatSession::ChatSession(Session& session, ChatOptions options)
    : session_(session), options_(std::move(options)) {}

void ChatSession::Answer(const std::string& message) {
  set_answering(true);
  conversation_.AddUser(message, std::ssize(attached_.images), std::ssize(attached_.audio));
  PromptMedia media = media_;
  media.images.insert(media.images.end(), attached_.images.begin(), attached_.images.end());
  media.audio.insert(media.audio.end(), attached_.audio.begin(), attached_.audio.end());
  if (const Result<bool> answered = TryAnswer(media); !answered.ok()) {
    conversation_.DropQuestion();
    PrintNotice(answered.error().message);
  } else if (*answered) {
    media_ = std::move(media);
    attached_ = {};
  }
  set_answering(false);
}

bool ChatSession::AnswerAgain() {
  const std::optional<Conversation::Question> question = conversation_.TakeBackQuestion();
  if (!question) return false;
  const auto take_back = [](auto& media, int64_t count, auto& attached) {
    attached.insert(attached.begin(), media.end() - count, media.end());
    media.erase(media.end() - count, media.end());
  };
  take_back(media_.images, question->num_images, attached_.images);
  take_back(media_.audio, question->num_sounds, attached_.audio);
  Answer(question->text);
  return true;
}

Status ChatSession::Load(const nlohmann::ordered_json& messages) {
  RETURN_IF_ERROR(conversation_.Load(messages));
  media_ = {};
  attached_ = {};
  return {};
}

Result<std::string> ChatSession::Attach(MediaKind kind, const std::string& path) {
  const bool is_image = kind == MediaKind::kImage;
  const MediaLimits& limits = session_.media_limits();
  if ((is_image ? limits.images : limits.audio) == 0) {
    return MakeError("this model takes no {}{}{}", is_image ? "images" : "audio",
                     limits.problem.empty() ? "" : ": ", limits.problem);
  }
  MediaEncoder& encoder = *session_.media_encoder();
  const int64_t max_bytes = is_image ? ImageLimits{}.max_bytes : AudioLimits{}.max_bytes;
  ASSIGN_OR_RETURN(const std::string file, ReadFile(path, static_cast<size_t>(max_bytes)));
  auto medium = is_image ? encoder.EncodeImageFile(file, 0) : encoder.EncodeAudioFile(file);
  if (!medium.ok()) return MakeError("{}: {}", path, medium.error().message);
  const int num_tokens = medium->num_tokens;
  (is_image ? attached_.images : attached_.audio).push_back({path, std::move(*medium)});
  return fmt::format("{} ({} tokens) goes with the next message", path, num_tokens);
}

void ChatSession::Reset() {
  conversation_.Reset();
  media_ = {};
  attached_ = {};
}

Result<bool> ChatSession::TryAnswer(const PromptMedia& media) {
  PreparedPrompt prompt;
  ASSIGN_OR_RETURN(prompt.text, EncodeChatPrompt(session_.text(), conversation_.Input()));
  if (!media.empty()) {
    ASSIGN_OR_RETURN(prompt.media, ExpandAndPlaceMedia(session_.plan(), *session_.text().tokenizer,
                                                       media, &prompt.text));
  }
  if (std::ssize(prompt.text.ids) >= options_.context) {
    return MakeError(
        "the context is full: it holds {} tokens and the conversation has {}; /reset starts a new "
        "one",
        options_.context, prompt.text.ids.size());
  }
  ASSIGN_OR_RETURN(const PreparedRequest prepared, Prepare(std::move(prompt)));
  const Request& request = prepared.requests[0];
  ++num_turns_;
  ParsedOutput output;
  RequestEvent last;
  {
    ASSIGN_OR_RETURN(RequestStream tokens, session_.Start(request));
    TextStream stream(std::move(tokens), &*session_.text().tokenizer, prepared.reader);
    set_current(&stream);
    last = Follow(stream, output);
    set_current(nullptr);
  }
  if (last.finish == FinishReason::kError) return MakeError("{}", last.error);
  const bool is_kept = conversation_.AddAnswer(output);
  Report(last, *request.max_new_tokens);
  return is_kept;
}

Result<PreparedRequest> ChatSession::Prepare(PreparedPrompt prompt) const {
  AnswerRequest asked = options_.answer;
  asked.clamps_max_tokens = true;
  asked.sampling.seed += num_turns_;
  const ChatRules rules = {.thinks = conversation_.thinking()};
  PreparedRequest prepared;
  const auto bad = PrepareRequest({.text = session_.text(),
                                   .vocab_size = session_.plan().vocab_size,
                                   .max_model_len = options_.context,
                                   .style = FieldStyle::kFlag},
                                  asked, &rules, {std::move(prompt)}, &prepared);
  if (bad) return MakeError("{}", bad->message);
  if (prepared.form) {
    ASSIGN_OR_RETURN(prepared.requests[0].grammar, options_.compiler->Compile(*prepared.form));
  }
  return prepared;
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
    PrintNotice(max_new_tokens == options_.answer.max_tokens
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
