#include "server/response_json.h"

#include <algorithm>

#include "server/random_id.h"

namespace lapidary {
namespace {

// JSON has no infinity; this is what vLLM writes.
float Finite(float logprob) { return std::max(logprob, -9999.0f); }

// The fields of an object, without the braces; it has one at least.
std::string Fields(const OrderedJson& object) {
  std::string text = DumpJson(object);
  return text.substr(1, text.size() - 2);
}

// An object that goes on.
std::string Open(const OrderedJson& object) { return "{" + Fields(object); }

OrderedJson ToolCallJson(const ChoiceDelta::ToolCall& call, bool with_index) {
  OrderedJson json;
  if (with_index) json["index"] = call.index;
  if (!call.is_begin()) {
    json["function"] = {{"arguments", call.arguments}};
    return json;
  }
  json["id"] = call.id;
  json["type"] = "function";
  json["function"] = {{"name", call.name}, {"arguments", call.arguments}};
  return json;
}

OrderedJson ToolCallsJson(const std::vector<ChoiceDelta::ToolCall>& calls, bool with_index) {
  OrderedJson json = OrderedJson::array();
  for (const auto& call : calls) json.push_back(ToolCallJson(call, with_index));
  return json;
}

const char* IdPrefix(ApiKind kind) {
  switch (kind) {
    case ApiKind::kChat:
      return "chatcmpl-";
    case ApiKind::kCompletion:
      return "cmpl-";
    case ApiKind::kTokens:
      return "gen-";
  }
  return "";
}

}  // namespace

ResponseJson::ResponseJson(ApiKind kind, const ServedModel& model, const GenerationRequest& request)
    : kind_(kind),
      model_(model),
      model_name_(model.AnswerName(request.model)),
      wants_logprobs_(request.sampling.num_logprobs >= 0),
      wants_token_ids_(request.return_token_ids),
      num_prompt_logprobs_(request.num_prompt_logprobs),
      made_seed_(request.has_seed ? std::nullopt : std::optional(request.sampling.seed)),
      id_(request.answer_id.empty() ? RandomId(IdPrefix(kind)) : request.answer_id),
      created_(UnixTime()) {}

OrderedJson ResponseJson::Head(bool is_chunk) const {
  if (kind_ == ApiKind::kTokens) {
    return {{"request_id", id_}, {"created", created_}, {"model", model_name_}};
  }
  const char* object = kind_ == ApiKind::kCompletion ? "text_completion"
                       : is_chunk                    ? "chat.completion.chunk"
                                                     : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_name_}};
}

OrderedJson ResponseJson::Message(const ChoiceDelta& output) const {
  OrderedJson message = {{"role", "assistant"}};
  const bool only_calls = output.content.empty() && !output.tool_calls.empty();
  message["content"] = only_calls ? OrderedJson(nullptr) : OrderedJson(output.content);
  if (!output.reasoning.empty()) {
    message["reasoning"] = output.reasoning;
    message["reasoning_content"] = output.reasoning;
  }
  if (!output.tool_calls.empty()) {
    message["tool_calls"] = ToolCallsJson(output.tool_calls, /*with_index=*/false);
  }
  return message;
}

OrderedJson ResponseJson::Delta(const ChoiceDelta& delta) const {
  OrderedJson json = OrderedJson::object();
  if (!delta.content.empty()) json["content"] = delta.content;
  if (!delta.reasoning.empty()) {
    json["reasoning"] = delta.reasoning;
    json["reasoning_content"] = delta.reasoning;
  }
  if (!delta.tool_calls.empty()) {
    json["tool_calls"] = ToolCallsJson(delta.tool_calls, /*with_index=*/true);
  }
  return json;
}

void ResponseJson::Whole(std::vector<FinishedChoice>& choices, const Usage& usage,
                         AnswerText* text) const {
  const bool is_chat = kind_ == ApiKind::kChat;
  const bool is_text = kind_ == ApiKind::kCompletion;
  // A text's prompt is told of with each choice, others once.
  const auto write_prompt = [&](const FinishedChoice& choice) {
    if (num_prompt_logprobs_ >= 0) {
      text->Append(",\"prompt_logprobs\":");
      WritePromptLogprobs(*choice.prompt_ids, *choice.prompt_logprobs, text);
    }
    if (wants_token_ids_ && kind_ != ApiKind::kTokens) {
      text->Append(",\"prompt_token_ids\":");
      text->Append(DumpJson(*choice.prompt_ids));
    }
  };
  text->Append(Open(Head(/*is_chunk=*/false)));
  text->Append(",\"choices\":[");
  for (size_t index = 0; index < choices.size() && text->ok(); ++index) {
    FinishedChoice& choice = choices[index];
    OrderedJson item = {{"index", index}};
    if (is_chat) {
      item["message"] = Message(choice.output);
    } else if (is_text) {
      item["text"] = choice.output.content;
    }
    if (index > 0) text->Append(",");
    text->Append(Open(item));
    text->Append(",\"logprobs\":");
    WriteLogprobs(choice.output.logprobs, text);
    text->Append(",");
    const OrderedJson finish = {{"finish_reason", choice.finish.reason},
                                {"stop_reason", choice.finish.stop_reason}};
    text->Append(Fields(finish));
    if (is_text) write_prompt(choice);
    if (wants_token_ids_) {
      text->Append(",\"token_ids\":");
      text->Append(DumpJson(choice.output.token_ids));
    }
    text->Append("}");
    choice.output = {};
  }
  text->Append("]");
  if (!is_text) write_prompt(choices.front());
  text->Append(",\"usage\":");
  text->Append(DumpJson(usage.ToJson()));
  text->Append("}");
}

OrderedJson ResponseJson::FirstFields() const {
  return made_seed_ ? OrderedJson{{"seed", *made_seed_}} : OrderedJson::object();
}

OrderedJson ResponseJson::RoleChunk(int index) const {
  OrderedJson json = Head(/*is_chunk=*/true);
  json["choices"] = OrderedJson::array({{{"index", index},
                                         {"delta", {{"role", "assistant"}, {"content", ""}}},
                                         {"logprobs", nullptr},
                                         {"finish_reason", nullptr}}});
  return json;
}

std::string ResponseJson::Chunk(int index, const ChoiceDelta& delta, const FinishInfo* finish,
                                const OrderedJson& tail) const {
  OrderedJson choice = {{"index", index}};
  if (kind_ == ApiKind::kChat) {
    choice["delta"] = Delta(delta);
  } else if (kind_ == ApiKind::kCompletion) {
    choice["text"] = delta.content;
  }
  OrderedJson rest = OrderedJson::object();
  if (wants_token_ids_) rest["token_ids"] = delta.token_ids;
  rest["finish_reason"] = finish == nullptr ? OrderedJson(nullptr) : OrderedJson(finish->reason);
  if (finish != nullptr) rest["stop_reason"] = finish->stop_reason;
  AnswerText text(/*lease=*/nullptr);
  text.Append(Open(Head(/*is_chunk=*/true)));
  text.Append(",\"choices\":[");
  text.Append(Open(choice));
  text.Append(",\"logprobs\":");
  delta.logprobs.empty() ? text.Append("null") : WriteLogprobs(delta.logprobs, &text);
  text.Append(",");
  text.Append(Fields(rest));
  text.Append("}]");
  if (!tail.empty()) text.Append("," + Fields(tail));
  text.Append("}");
  return text.Take();
}

OrderedJson ResponseJson::UsageChunk(const Usage& usage) const {
  OrderedJson json = Head(/*is_chunk=*/true);
  json["choices"] = OrderedJson::array();
  json["usage"] = usage.ToJson();
  return json;
}

OrderedJson ResponseJson::TokenJson(int32_t id, float logprob) const {
  OrderedJson bytes = OrderedJson::array();
  for (const char byte : model_.TokenBytes(id)) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", model_.TokenText(id)}, {"logprob", Finite(logprob)}, {"bytes", bytes}};
}

OrderedJson ResponseJson::PromptLogprob(const SampledToken& token) const {
  OrderedJson item = OrderedJson::object();
  const auto add = [&](int32_t id, float logprob, OrderedJson rank) {
    item[std::to_string(id)] = {{"logprob", Finite(logprob)},
                                {"rank", std::move(rank)},
                                {"decoded_token", model_.TokenText(id)}};
  };
  add(token.id, token.logprob, nullptr);  // Its rank is known if it is among the likeliest.
  for (int32_t rank = 0; rank < std::min(token.num_top, num_prompt_logprobs_); ++rank) {
    add(token.top[rank].id, token.top[rank].logprob, rank + 1);
  }
  return item;
}

void ResponseJson::WritePromptLogprobs(const std::vector<int32_t>& ids,
                                       const std::vector<SampledToken>& logprobs,
                                       AnswerText* text) const {
  text->Append("[null");
  for (size_t idx = 1; idx < ids.size() && text->ok(); ++idx) {
    text->Append(",");
    text->Append(DumpJson(PromptLogprob(logprobs[idx - 1])));
  }
  text->Append("]");
}

OrderedJson ResponseJson::ChatLogprob(const ChoiceDelta::Logprob& logprob) const {
  const SampledToken& token = logprob.token;
  OrderedJson item = TokenJson(token.id, token.logprob);
  item["top_logprobs"] = OrderedJson::array();
  for (const TokenLogprob& top : token.top_logprobs()) {
    item["top_logprobs"].push_back(TokenJson(top.id, top.logprob));
  }
  return item;
}

OrderedJson ResponseJson::TopLogprobs(const ChoiceDelta::Logprob& logprob) const {
  if (logprob.is_unknown) return nullptr;
  OrderedJson json = OrderedJson::object();
  for (const TokenLogprob& top : logprob.token.top_logprobs()) {
    // Different ids may have the same text: the likeliest of them is meant.
    json.emplace(model_.TokenText(top.id), Finite(top.logprob));
  }
  // Also when it is not among the likeliest.
  json.emplace(model_.TokenText(logprob.token.id), Finite(logprob.token.logprob));
  return json;
}

void ResponseJson::WriteLogprobs(const Logprobs& logprobs, AnswerText* text) const {
  if (!wants_logprobs_) return text->Append("null");
  const auto write_list = [&](const char* name, const auto& of_token) {
    text->Append(fmt::format("\"{}\":[", name));
    for (size_t idx = 0; idx < logprobs.size() && text->ok(); ++idx) {
      if (idx > 0) text->Append(",");
      text->Append(DumpJson(of_token(logprobs[idx])));
    }
    text->Append("]");
  };
  using Logprob = ChoiceDelta::Logprob;
  text->Append("{");
  if (kind_ != ApiKind::kCompletion) {
    write_list("content", [&](const Logprob& logprob) { return ChatLogprob(logprob); });
    return text->Append("}");
  }
  write_list("tokens", [&](const Logprob& logprob) -> OrderedJson {
    return model_.TokenText(logprob.token.id);
  });
  text->Append(",");
  write_list("token_logprobs", [&](const Logprob& logprob) {
    return logprob.is_unknown ? OrderedJson(nullptr) : OrderedJson(Finite(logprob.token.logprob));
  });
  text->Append(",");
  write_list("top_logprobs", [&](const Logprob& logprob) { return TopLogprobs(logprob); });
  text->Append(",");
  write_list("text_offset",
             [&](const Logprob& logprob) -> OrderedJson { return logprob.text_offset; });
  text->Append("}");
}

}  // namespace lapidary
