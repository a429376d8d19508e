#include "front/answer_stream.h"

#include <algorithm>

namespace lapidary {
namespace {

size_t CountCharacters(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

}  // namespace

AnswerStream::AnswerStream(const Tokenizer& tokenizer, AnswerStreamOptions options)
    : detokenizer_(tokenizer, options.skip_special),
      stop_strings_(std::move(options.stop_strings)),
      num_early_tokens_(options.min_tokens) {
  if (options.parser) parser_.emplace(std::move(*options.parser));
}

void AnswerStream::Push(int32_t id, std::vector<OutputEvent>* events) {
  // Bytes of a character that never came to its end belong to what a special token ends.
  if (parser_ && parser_->IsSpecial(id)) EndCharacter(events);
  std::string text;
  if (const Status known = detokenizer_.Push(id, &text); known.ok()) {
    num_characters_ += CountCharacters(text);
    Take(id, text, events);
  }
  if (num_early_tokens_ > 0) --num_early_tokens_;
}

void AnswerStream::EndCharacter(std::vector<OutputEvent>* events) {
  constexpr int32_t kNoToken = -1;
  std::string text;
  detokenizer_.Finish(&text);
  num_characters_ += CountCharacters(text);
  if (!text.empty()) Take(kNoToken, text, events);
}

void AnswerStream::Finish(std::vector<OutputEvent>* events) {
  EndCharacter(events);
  if (parser_) {
    parser_->Finish(&parsed_);
    Filter(events);
  }
  if (std::string held = stop_strings_.Finish(); !held.empty()) {
    events->push_back({OutputEvent::Kind::kContent, std::move(held)});
  }
}

void AnswerStream::Take(int32_t id, std::string_view text, std::vector<OutputEvent>* events) {
  if (!parser_) return AddContent(text, events);
  parser_->Push(id, text, &parsed_);
  Filter(events);
}

void AnswerStream::AddContent(std::string_view text, std::vector<OutputEvent>* events) {
  if (text.empty()) return;
  std::string safe =
      num_early_tokens_ > 0 ? stop_strings_.PushUnstopped(text) : stop_strings_.Push(text);
  if (!safe.empty()) {
    events->push_back({OutputEvent::Kind::kContent, std::move(safe)});
  }
}

void AnswerStream::Filter(std::vector<OutputEvent>* events) {
  for (OutputEvent& event : parsed_) {
    if (stop_strings_.matched()) break;
    if (event.kind == OutputEvent::Kind::kContent) {
      AddContent(event.text, events);
    } else {
      events->push_back(std::move(event));
    }
  }
  parsed_.clear();
}

}  // namespace lapidary
