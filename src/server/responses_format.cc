#include "server/responses_format.h"

#include "server/random_id.h"

namespace lapidary {
namespace {

OrderedJson TextPart(const std::string& text) {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", OrderedJson::array()},
          {"logprobs", OrderedJson::array()}};
}

OrderedJson ItemJson(const ItemStream::Item& item, bool is_done) {
  const char* status = is_done ? "completed" : "in_progress";
  if (item.kind == ItemStream::Kind::kReasoning) {
    OrderedJson content = OrderedJson::array();
    if (is_done) content.push_back({{"type", "reasoning_text"}, {"text", item.text}});
    return {{"id", item.id},
            {"type", "reasoning"},
            {"summary", OrderedJson::array()},
            {"content", std::move(content)},
            {"status", status}};
  }
  if (item.kind == ItemStream::Kind::kToolCall) {
    return {{"id", item.id},
            {"type", "function_call"},
            {"call_id", item.call_id},
            {"name", item.call_name},
            {"arguments", is_done ? item.text : ""},
            {"status", status}};
  }
  OrderedJson content = OrderedJson::array();
  if (is_done) content.push_back(TextPart(item.text));
  return {{"id", item.id},
          {"type", "message"},
          {"role", "assistant"},
          {"content", std::move(content)},
          {"status", status}};
}

OrderedJson UsageJson(const Usage& usage) {
  // Every prompt is kept in the prefix cache where there is room, at no price: none is written for
  // the request's own sake.
  return {
      {"input_tokens", usage.prompt_tokens},
      {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
      {"output_tokens", usage.completion_tokens},
      {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
      {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

}  // namespace

ResponsesFormat::ResponsesFormat(std::string model_name, OrderedJson echoed, OutputSink on_output)
    : id_(RandomId("resp_")),
      created_(UnixTime()),
      model_name_(std::move(model_name)),
      echoed_(std::move(echoed)),
      on_output_(std::move(on_output)) {}

OrderedJson ResponsesFormat::Response(const char* status, const Usage* usage) const {
  OrderedJson json = {{"id", id_},
                      {"object", "response"},
                      {"created_at", created_},
                      {"status", status},
                      {"error", nullptr},
                      {"incomplete_details", nullptr},
                      {"model", model_name_},
                      {"output", output_}};
  if (is_cut_) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  for (const auto& [name, value] : echoed_.items()) json[name] = value;
  json["usage"] = usage == nullptr ? OrderedJson(nullptr) : UsageJson(*usage);
  return json;
}

OrderedJson ResponsesFormat::CompleteResponse(const Usage& usage) {
  OrderedJson response = Response(is_cut_ ? "incomplete" : "completed", &usage);
  if (!token_ids_.empty()) response["token_ids"] = token_ids_;
  if (on_output_) on_output_(id_, response);
  return response;
}

void ResponsesFormat::Whole(std::vector<FinishedChoice> choices, const Usage& usage,
                            AnswerText* text) {
  is_cut_ = choices[0].finish.reason == "length";
  token_ids_ = std::move(choices[0].output.token_ids);
  Push(choices[0].output);
  Finish();
  text->Append(DumpJson(CompleteResponse(usage)));
}

void ResponsesFormat::Emit(const std::string& type, OrderedJson fields) {
  if (events_ == nullptr) return;
  OrderedJson json = {{"type", type}, {"sequence_number", next_number_++}};
  json.update(fields);
  events_->push_back({type, DumpJson(json)});
}

void ResponsesFormat::Begin(const Usage&, ServerEvents* events) {
  events_ = events;
  Emit("response.created", {{"response", Response("in_progress", nullptr)}});
  Emit("response.in_progress", {{"response", Response("in_progress", nullptr)}});
}

void ResponsesFormat::Delta(int, const ChoiceDelta& delta, const FinishInfo* finish, bool,
                            const Usage&, ServerEvents* events) {
  events_ = events;
  const size_t num_before = events->size();
  Push(delta);
  if (finish != nullptr) {
    is_cut_ = finish->reason == "length";
    Finish();
  }
  if (delta.token_ids.empty()) return;
  token_ids_.insert(token_ids_.end(), delta.token_ids.begin(), delta.token_ids.end());
  if (events->size() == num_before) return;
  // Whoever has read all that the tokens show has them too.
  std::string& last = events->back().data;
  last.pop_back();
  last += fmt::format(",\"token_ids\":{}}}", DumpJson(delta.token_ids));
}

void ResponsesFormat::End(const Usage& usage, ServerEvents* events) {
  events_ = events;
  const char* type = is_cut_ ? "response.incomplete" : "response.completed";
  Emit(type, {{"response", CompleteResponse(usage)}});
}

void ResponsesFormat::Fail(const ApiError& error, ServerEvents* events) {
  events_ = events;
  OrderedJson response = Response("failed", nullptr);
  response["error"] = {{"code", error.code.empty() ? "server_error" : error.code},
                       {"message", error.message}};
  Emit("response.failed", {{"response", std::move(response)}});
}

std::string ResponsesFormat::MakeId(Kind kind) {
  return RandomId(kind == Kind::kReasoning ? "rs_" : kind == Kind::kToolCall ? "fc_" : "msg_");
}

void ResponsesFormat::OnBegin(const Item& item) {
  Emit("response.output_item.added",
       {{"output_index", item.index}, {"item", ItemJson(item, /*is_done=*/false)}});
  if (item.kind == Kind::kToolCall) return;
  const OrderedJson part = item.kind == Kind::kText
                               ? TextPart("")
                               : OrderedJson{{"type", "reasoning_text"}, {"text", ""}};
  Emit("response.content_part.added",
       {{"item_id", item.id}, {"output_index", item.index}, {"content_index", 0}, {"part", part}});
}

void ResponsesFormat::OnText(const Item& item, const std::string& text) {
  OrderedJson fields = {{"item_id", item.id}, {"output_index", item.index}};
  if (item.kind == Kind::kToolCall) {
    fields["delta"] = text;
    return Emit("response.function_call_arguments.delta", std::move(fields));
  }
  fields["content_index"] = 0;
  fields["delta"] = text;
  if (item.kind == Kind::kReasoning)
    return Emit("response.reasoning_text.delta", std::move(fields));
  fields["logprobs"] = OrderedJson::array();
  Emit("response.output_text.delta", std::move(fields));
}

void ResponsesFormat::OnEnd(const Item& item) {
  OrderedJson done = ItemJson(item, /*is_done=*/true);
  OrderedJson fields = {{"item_id", item.id}, {"output_index", item.index}};
  if (item.kind == Kind::kToolCall) {
    fields["name"] = item.call_name;
    fields["arguments"] = item.text;
    Emit("response.function_call_arguments.done", std::move(fields));
  } else {
    fields["content_index"] = 0;
    OrderedJson text = fields;
    text["text"] = item.text;
    if (item.kind == Kind::kText) text["logprobs"] = OrderedJson::array();
    Emit(item.kind == Kind::kText ? "response.output_text.done" : "response.reasoning_text.done",
         std::move(text));
    fields["part"] = done["content"][0];
    Emit("response.content_part.done", std::move(fields));
  }
  Emit("response.output_item.done", {{"output_index", item.index}, {"item", done}});
  output_.push_back(std::move(done));
}

OrderedJson OutputToMessage(const OrderedJson& items) {
  OrderedJson message = {{"role", "assistant"}, {"content", nullptr}};
  std::string text;
  for (const OrderedJson& item : items) {
    if (item["type"] == "message") text += item["content"][0]["text"].get<std::string>();
    if (item["type"] == "reasoning") message["reasoning"] = item["content"][0]["text"];
    if (item["type"] != "function_call") continue;
    // One that was cut is no call that could be gone on from.
    if (!OrderedJson::accept(item["arguments"].get_ref<const std::string&>())) continue;
    message["tool_calls"].push_back(
        {{"id", item["call_id"]},
         {"type", "function"},
         {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}});
  }
  if (!text.empty()) message["content"] = text;
  return message;
}

}  // namespace lapidary
