#include "server/messages_format.h"

#include "base/excerpt.h"
#include "server/random_id.h"

namespace lapidary {
namespace {

OrderedJson UsageJson(const Usage& usage) {
  // Input tokens are those that had to be computed; the others are counted as read from the cache.
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.completion_tokens}};
}

// Arguments come from our own parser: an object, unless the answer was cut.
OrderedJson ParseInput(const std::string& text) {
  OrderedJson input = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return input.is_object() ? input : OrderedJson::object();
}

OrderedJson Block(const ItemStream::Item& item, bool is_done) {
  if (item.kind == ItemStream::Kind::kReasoning) {
    return {{"type", "thinking"}, {"thinking", is_done ? item.text : ""}, {"signature", ""}};
  }
  if (item.kind == ItemStream::Kind::kText) {
    return {{"type", "text"}, {"text", is_done ? item.text : ""}};
  }
  return {{"type", "tool_use"},
          {"id", item.call_id},
          {"name", item.call_name},
          {"input", is_done ? ParseInput(item.text) : OrderedJson::object()}};
}

const char* StopReason(const FinishInfo& finish) {
  if (finish.reason == "length") return "max_tokens";
  if (finish.reason == "tool_calls") return "tool_use";
  return finish.stop_reason.is_string() ? "stop_sequence" : "end_turn";
}

const char* ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

OrderedJson MessagesError(const ApiError& error) {
  return {
      {"type", "error"},
      {"error",
       {{"type", ErrorType(error.status)}, {"message", Excerpt(error.message, kMaxErrorChars)}}}};
}

MessagesFormat::MessagesFormat(std::string model_name)
    : id_(RandomId("msg_")), model_name_(std::move(model_name)) {}

OrderedJson MessagesFormat::Message(const Usage& usage) const {
  return {{"id", id_},
          {"type", "message"},
          {"role", "assistant"},
          {"model", model_name_},
          {"content", content_},
          {"stop_reason", stop_reason_},
          {"stop_sequence", stop_sequence_},
          {"usage", UsageJson(usage)}};
}

void MessagesFormat::Whole(std::vector<FinishedChoice> choices, const Usage& usage,
                           AnswerText* text) {
  const FinishInfo& finish = choices[0].finish;
  stop_reason_ = StopReason(finish);
  if (finish.stop_reason.is_string()) stop_sequence_ = finish.stop_reason;
  Push(choices[0].output);
  Finish();
  text->Append(DumpJson(Message(usage)));
}

void MessagesFormat::Emit(const std::string& type, OrderedJson fields) {
  if (events_ == nullptr) return;
  OrderedJson json = {{"type", type}};
  json.update(fields);
  events_->push_back({type, DumpJson(json)});
}

void MessagesFormat::Begin(const Usage& usage, ServerEvents* events) {
  events_ = events;
  Emit("message_start", {{"message", Message(usage)}});
}

void MessagesFormat::Delta(int, const ChoiceDelta& delta, const FinishInfo* finish, bool,
                           const Usage&, ServerEvents* events) {
  events_ = events;
  Push(delta);
  if (finish == nullptr) return;
  Finish();
  stop_reason_ = StopReason(*finish);
  if (finish->stop_reason.is_string()) stop_sequence_ = finish->stop_reason;
}

void MessagesFormat::End(const Usage& usage, ServerEvents* events) {
  events_ = events;
  Emit("message_delta",
       {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
        {"usage", UsageJson(usage)}});
  Emit("message_stop", OrderedJson::object());
}

void MessagesFormat::Fail(const ApiError& error, ServerEvents* events) {
  events->push_back({"error", DumpJson(MessagesError(error))});
}

OrderedJson MessagesFormat::ErrorBody(const ApiError& error) const { return MessagesError(error); }

std::string MessagesFormat::MakeId(Kind) { return ""; }

void MessagesFormat::OnBegin(const Item& item) {
  Emit("content_block_start",
       {{"index", item.index}, {"content_block", Block(item, /*is_done=*/false)}});
}

void MessagesFormat::OnText(const Item& item, const std::string& text) {
  OrderedJson delta;
  if (item.kind == Kind::kReasoning) delta = {{"type", "thinking_delta"}, {"thinking", text}};
  if (item.kind == Kind::kText) delta = {{"type", "text_delta"}, {"text", text}};
  if (item.kind == Kind::kToolCall) delta = {{"type", "input_json_delta"}, {"partial_json", text}};
  Emit("content_block_delta", {{"index", item.index}, {"delta", std::move(delta)}});
}

void MessagesFormat::OnEnd(const Item& item) {
  Emit("content_block_stop", {{"index", item.index}});
  content_.push_back(Block(item, /*is_done=*/true));
}

}  // namespace lapidary
