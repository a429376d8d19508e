#include "request/answer_reader.h"

#include <algorithm>
#include <utility>

namespace lapidary {
namespace {

bool IsOfCall(const OutputEvent& event) {
  return event.kind != OutputEvent::Kind::kReasoning && event.kind != OutputEvent::Kind::kContent;
}

}  // namespace

AnswerReader::AnswerReader(const Tokenizer* tokenizer, AnswerReaderOptions options)
    : stop_(std::move(options.stop)),
      stop_token_ids_(std::move(options.stop_token_ids)),
      single_call_(options.single_call) {
  if (tokenizer == nullptr) return;
  text_.emplace(*tokenizer,
                AnswerStreamOptions{
                    .skip_special = options.skip_special,
                    .stop_strings = StopStrings::Create(stop_, options.include_stop_text).value(),
                    .min_tokens = options.min_tokens,
                    .parser = std::move(options.parser)});
}

AnswerNews AnswerReader::Read(const RequestEvent& event) {
  AnswerNews news;
  if (has_ended_) return news;
  const size_t num_tokens = event.tokens.size();
  const bool has_stop_token = event.finish == FinishReason::kStop && num_tokens > 0;
  while (news.num_tokens < num_tokens && !is_complete_) {
    const int32_t id = event.tokens[news.num_tokens++].id;
    news.text_offsets.push_back(text_ ? text_->num_characters() : 0);
    news.has_stop_token = has_stop_token && news.num_tokens == num_tokens;
    if (!news.has_stop_token) Push(id, &news.output);
  }
  if (!is_complete_ && !event.finish) return news;
  has_ended_ = true;
  if (text_) {
    const size_t first = news.output.size();
    text_->Finish(&news.output);
    TakeCalls(first, &news.output);
  }
  news.end = MakeEnd(event, news.has_stop_token);
  return news;
}

void AnswerReader::Push(int32_t id, std::vector<OutputEvent>* output) {
  if (!text_) return;
  const size_t first = output->size();
  const bool was_in_thought = text_->in_thought();
  text_->Push(id, output);
  num_reasoning_tokens_ += was_in_thought || text_->in_thought();
  TakeCalls(first, output);
  is_complete_ = text_->matched() || (single_call_ && num_tool_calls_ > 0);
}

void AnswerReader::TakeCalls(size_t first, std::vector<OutputEvent>* output) {
  size_t num_kept = first;
  for (size_t idx = first; idx < output->size(); ++idx) {
    OutputEvent& event = (*output)[idx];
    if (IsOfCall(event) && single_call_ && num_tool_calls_ > 0) continue;
    if (event.kind == OutputEvent::Kind::kToolCallEnd) ++num_tool_calls_;
    if (num_kept != idx) (*output)[num_kept] = std::move(event);
    ++num_kept;
  }
  output->resize(num_kept);
}

AnswerEnd AnswerReader::MakeEnd(const RequestEvent& event, bool has_stop_token) const {
  using Reason = AnswerEnd::Reason;
  AnswerEnd end;
  if (event.finish == FinishReason::kError) {
    end.reason = Reason::kError;
  } else if (is_complete_ || event.finish == FinishReason::kStop) {
    end.reason = num_tool_calls_ > 0 ? Reason::kToolCalls : Reason::kStop;
  } else {
    end.reason = event.finish == FinishReason::kLength ? Reason::kLength : Reason::kCancelled;
  }
  if (const std::string* stop = matched_stop()) {
    end.stop_string = *stop;
  } else if (has_stop_token) {
    const int32_t id = event.tokens.back().id;
    const bool was_named =
        std::find(stop_token_ids_.begin(), stop_token_ids_.end(), id) != stop_token_ids_.end();
    if (was_named) end.stop_token_id = id;
  }
  return end;
}

const std::string* AnswerReader::matched_stop() const {
  if (!text_ || !text_->matched()) return nullptr;
  return &stop_[static_cast<size_t>(text_->match_index())];
}

}  // namespace lapidary
