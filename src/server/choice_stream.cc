#include "server/choice_stream.h"

#include <algorithm>
#include <random>

namespace lapidary {
namespace {

size_t CountCodePoints(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string RandomId(std::string_view prefix) {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return fmt::format("{}{:016x}{:08x}", prefix, generator(), generator() >> 32);
}

ChoiceStream::ChoiceStream(const Tokenizer& tokenizer, const GenerationRequest& request,
                           const std::optional<OutputParserOptions>& parser_options,
                           bool single_call)
    : detokenizer_(tokenizer, request.skip_special),
      stop_strings_(StopStrings::Create(request.stop, request.include_stop_text).value()),
      stop_(request.stop),
      wants_logprobs_(request.sampling.num_logprobs >= 0),
      single_call_(single_call) {
  if (parser_options) parser_.emplace(*parser_options);
}

bool ChoiceStream::Push(const SampledToken& token, ChoiceDelta* delta) {
  if (wants_logprobs_) delta->logprobs.push_back({token, text_offset_});
  std::string text;
  // An id without text, which padded vocabularies have, adds nothing.
  if (!detokenizer_.Push(token.id, &text).ok()) return false;
  text_offset_ += CountCodePoints(text);
  if (parser_) {
    std::vector<OutputEvent> events;
    parser_->Push(token.id, text, &events);
    Take(std::move(events), delta);
  } else {
    AddContent(text, delta);
  }
  return stop_strings_.matched() || (single_call_ && num_tool_calls_ > 0);
}

void ChoiceStream::Finish(ChoiceDelta* delta) {
  std::string text;
  detokenizer_.Finish(&text);
  if (parser_) {
    std::vector<OutputEvent> events;
    constexpr int kNoToken = -1;
    if (!text.empty()) parser_->Push(kNoToken, text, &events);
    parser_->Finish(&events);
    Take(std::move(events), delta);
  } else {
    AddContent(text, delta);
  }
  delta->content += stop_strings_.Finish();
}

void ChoiceStream::AddContent(std::string_view text, ChoiceDelta* delta) {
  if (!text.empty()) delta->content += stop_strings_.Push(text);
}

void ChoiceStream::Take(std::vector<OutputEvent> events, ChoiceDelta* delta) {
  using Kind = OutputEvent::Kind;
  for (OutputEvent& event : events) {
    if (stop_strings_.matched()) return;
    if (event.kind == Kind::kReasoning) delta->reasoning += event.text;
    if (event.kind == Kind::kContent) AddContent(event.text, delta);
    if (event.kind == Kind::kToolCallBegin) call_name_ = std::move(event.text);
    if (event.kind == Kind::kToolCallArguments && !(single_call_ && num_tool_calls_ > 0)) {
      delta->tool_calls.push_back(
          {num_tool_calls_++, RandomId("call_"), std::move(call_name_), std::move(event.text)});
    }
  }
}

const std::string* ChoiceStream::matched_stop() const {
  return stop_strings_.matched() ? &stop_[static_cast<size_t>(stop_strings_.match_index())]
                                 : nullptr;
}

}  // namespace lapidary
