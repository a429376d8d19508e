#include "server/ollama_format.h"

#include <utility>

#include "base/excerpt.h"
#include "server/utc_time.h"

namespace lapidary {
namespace {

OrderedJson HeadOf(const std::string& model_name) {
  return {{"model", model_name}, {"created_at", UtcTime(std::chrono::system_clock::now())}};
}

void AddMessageTo(OllamaKind kind, OrderedJson message, OrderedJson* line) {
  if (kind == OllamaKind::kChat) {
    OrderedJson with_role = {{"role", "assistant"}};
    with_role.update(message);
    (*line)["message"] = std::move(with_role);
    return;
  }
  (*line)["response"] = message["content"];
  message.erase("content");
  line->update(message);
}

// Null of a call that was cut: its arguments are no object.
OrderedJson CallJson(const std::string& name, const std::string& arguments) {
  OrderedJson parsed = OrderedJson::parse(arguments, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return nullptr;
  return {{"function", {{"name", name}, {"arguments", std::move(parsed)}}}};
}

int64_t Nanoseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

}  // namespace

OrderedJson OllamaError(const ApiError& error) {
  return {{"error", Excerpt(error.message, kMaxErrorChars)}};
}

OrderedJson OllamaLoaded(OllamaKind kind, const std::string& model_name) {
  OrderedJson answer = HeadOf(model_name);
  AddMessageTo(kind, {{"content", ""}}, &answer);
  answer["done"] = true;
  answer["done_reason"] = "load";
  return answer;
}

OllamaFormat::OllamaFormat(OllamaKind kind, std::string model_name)
    : kind_(kind), model_name_(std::move(model_name)) {}

OrderedJson OllamaFormat::Head() const { return HeadOf(model_name_); }

void OllamaFormat::AddMessage(OrderedJson message, OrderedJson* line) const {
  AddMessageTo(kind_, std::move(message), line);
}

void OllamaFormat::AddEnd(const Usage& usage, OrderedJson* line) const {
  const Clock::time_point end = Clock::now();
  // Of a whole answer it is not known when it began: its prompt counts as part of it.
  const Clock::time_point first_token = first_token_.value_or(begin_);
  (*line)["done"] = true;
  (*line)["done_reason"] = finish_reason_;
  (*line)["total_duration"] = Nanoseconds(end - begin_);
  (*line)["load_duration"] = 0;
  (*line)["prompt_eval_count"] = usage.prompt_tokens;
  (*line)["prompt_eval_duration"] = Nanoseconds(first_token - begin_);
  (*line)["eval_count"] = usage.completion_tokens;
  (*line)["eval_duration"] = Nanoseconds(end - first_token);
}

void OllamaFormat::Whole(std::vector<FinishedChoice> choices, const Usage& usage,
                         AnswerText* text) {
  const ChoiceDelta& output = choices[0].output;
  if (choices[0].finish.reason == "length") finish_reason_ = "length";
  OrderedJson message = {{"content", output.content}};
  if (!output.reasoning.empty()) message["thinking"] = output.reasoning;
  for (const ChoiceDelta::ToolCall& call : output.tool_calls) {
    message["tool_calls"].push_back(CallJson(call.name, call.arguments));
  }
  OrderedJson json = Head();
  AddMessage(std::move(message), &json);
  AddEnd(usage, &json);
  text->Append(DumpJson(json));
}

void OllamaFormat::Begin(const Usage&, ServerEvents*) {}

void OllamaFormat::Emit(OrderedJson message) {
  OrderedJson line = Head();
  AddMessage(std::move(message), &line);
  line["done"] = false;
  events_->push_back({"", DumpJson(line)});
}

void OllamaFormat::Delta(int, const ChoiceDelta& delta, const FinishInfo* finish, bool is_first,
                         const Usage&, ServerEvents* events) {
  events_ = events;
  if (is_first) first_token_ = Clock::now();
  Push(delta);
  if (finish == nullptr) return;
  if (finish->reason == "length") finish_reason_ = "length";
  Finish();
}

void OllamaFormat::End(const Usage& usage, ServerEvents* events) {
  OrderedJson line = Head();
  AddMessage({{"content", ""}}, &line);
  AddEnd(usage, &line);
  events->push_back({"", DumpJson(line)});
}

void OllamaFormat::Fail(const ApiError& error, ServerEvents* events) {
  events->push_back({"", DumpJson(OllamaError(error))});
}

OrderedJson OllamaFormat::ErrorBody(const ApiError& error) const { return OllamaError(error); }

std::string OllamaFormat::MakeId(Kind) { return ""; }

void OllamaFormat::OnBegin(const Item&) {}

void OllamaFormat::OnText(const Item& item, const std::string& text) {
  if (item.kind == Kind::kText) Emit({{"content", text}});
  if (item.kind == Kind::kReasoning) Emit({{"content", ""}, {"thinking", text}});
}

// Calls are told of as a whole; what was cut in the middle of one is text.
void OllamaFormat::OnEnd(const Item& item) {
  if (item.kind != Kind::kToolCall) return;
  OrderedJson call = CallJson(item.call_name, item.text);
  if (call.is_null()) return Emit({{"content", item.call_name + item.text}});
  Emit({{"content", ""}, {"tool_calls", OrderedJson::array({std::move(call)})}});
}

}  // namespace lapidary
