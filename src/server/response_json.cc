#include "server/response_json.h"

#include <algorithm>

#include "server/random_id.h"

namespace lapidary {
namespace {

// JSON has no infinity; this is what vLLM writes.
float Finite(float logprob) { return std::max(logprob, -9999.0f); }

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

}  // namespace

ResponseJson::ResponseJson(ApiKind kind, const ServedModel& model, const GenerationRequest& request)
    : kind_(kind),
      model_(model),
      wants_logprobs_(request.sampling.num_logprobs >= 0),
      wants_token_ids_(request.return_token_ids),
      num_prompt_logprobs_(request.num_prompt_logprobs),
      id_(RandomId(kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-")),
      created_(UnixTime()) {}

OrderedJson ResponseJson::Head(bool is_chunk) const {
  const char* object = kind_ == ApiKind::kCompletion ? "text_completion"
                       : is_chunk                    ? "chat.completion.chunk"
                                                     : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_.name()}};
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

OrderedJson ResponseJson::Whole(const std::vector<FinishedChoice>& choices,
                                const Usage& usage) const {
  OrderedJson json = Head(/*is_chunk=*/false);
  json["choices"] = OrderedJson::array();
  for (const FinishedChoice& choice : choices) {
    OrderedJson item = {{"index", json["choices"].size()}};
    if (kind_ == ApiKind::kChat) {
      item["message"] = Message(choice.output);
    } else {
      item["text"] = choice.output.content;
    }
    item["logprobs"] = Logprobs(choice.output.logprobs);
    item["finish_reason"] = choice.finish.reason;
    item["stop_reason"] = choice.finish.stop_reason;
    OrderedJson& prompt_holder = kind_ == ApiKind::kChat ? json : item;
    if (num_prompt_logprobs_ >= 0) {
      prompt_holder["prompt_logprobs"] =
          PromptLogprobs(*choice.prompt_ids, *choice.prompt_logprobs);
    }
    if (wants_token_ids_) {
      prompt_holder["prompt_token_ids"] = *choice.prompt_ids;
      item["token_ids"] = choice.output.token_ids;
    }
    json["choices"].push_back(std::move(item));
  }
  json["usage"] = usage.ToJson();
  return json;
}

OrderedJson ResponseJson::ChunkOf(OrderedJson choice) const {
  OrderedJson json = Head(/*is_chunk=*/true);
  json["choices"] = OrderedJson::array();
  json["choices"].push_back(std::move(choice));
  return json;
}

OrderedJson ResponseJson::RoleChunk(int index) const {
  return ChunkOf({{"index", index},
                  {"delta", {{"role", "assistant"}, {"content", ""}}},
                  {"logprobs", nullptr},
                  {"finish_reason", nullptr}});
}

OrderedJson ResponseJson::Chunk(int index, const ChoiceDelta& delta,
                                const FinishInfo* finish) const {
  OrderedJson choice = {{"index", index}};
  if (kind_ == ApiKind::kChat) {
    choice["delta"] = Delta(delta);
  } else {
    choice["text"] = delta.content;
  }
  choice["logprobs"] = delta.logprobs.empty() ? OrderedJson(nullptr) : Logprobs(delta.logprobs);
  if (wants_token_ids_) choice["token_ids"] = delta.token_ids;
  choice["finish_reason"] = finish == nullptr ? OrderedJson(nullptr) : OrderedJson(finish->reason);
  if (finish != nullptr) choice["stop_reason"] = finish->stop_reason;
  return ChunkOf(std::move(choice));
}

OrderedJson ResponseJson::UsageChunk(const Usage& usage) const {
  OrderedJson json = Head(/*is_chunk=*/true);
  json["choices"] = OrderedJson::array();
  json["usage"] = usage.ToJson();
  return json;
}

OrderedJson ResponseJson::Logprobs(const std::vector<ChoiceDelta::Logprob>& logprobs) const {
  if (!wants_logprobs_) return nullptr;
  return kind_ == ApiKind::kChat ? ChatLogprobs(logprobs) : TextLogprobs(logprobs);
}

OrderedJson ResponseJson::TokenJson(int32_t id, float logprob) const {
  OrderedJson bytes = OrderedJson::array();
  for (const char byte : model_.TokenBytes(id)) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", model_.TokenText(id)}, {"logprob", Finite(logprob)}, {"bytes", bytes}};
}

OrderedJson ResponseJson::PromptLogprobs(const std::vector<int32_t>& ids,
                                         const std::vector<SampledToken>& logprobs) const {
  OrderedJson json = OrderedJson::array({nullptr});
  for (size_t idx = 1; idx < ids.size(); ++idx) {
    const SampledToken& token = logprobs[idx - 1];
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
    json.push_back(std::move(item));
  }
  return json;
}

OrderedJson ResponseJson::ChatLogprobs(const std::vector<ChoiceDelta::Logprob>& logprobs) const {
  OrderedJson content = OrderedJson::array();
  for (const auto& [token, text_offset, is_unknown] : logprobs) {
    OrderedJson item = TokenJson(token.id, token.logprob);
    item["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& top : token.top_logprobs()) {
      item["top_logprobs"].push_back(TokenJson(top.id, top.logprob));
    }
    content.push_back(std::move(item));
  }
  return {{"content", std::move(content)}};
}

OrderedJson ResponseJson::TextLogprobs(const std::vector<ChoiceDelta::Logprob>& logprobs) const {
  OrderedJson json = {{"tokens", OrderedJson::array()},
                      {"token_logprobs", OrderedJson::array()},
                      {"top_logprobs", OrderedJson::array()},
                      {"text_offset", OrderedJson::array()}};
  for (const auto& [token, text_offset, is_unknown] : logprobs) {
    const std::string text = model_.TokenText(token.id);
    json["tokens"].push_back(text);
    json["text_offset"].push_back(text_offset);
    json["token_logprobs"].push_back(is_unknown ? OrderedJson(nullptr)
                                                : OrderedJson(Finite(token.logprob)));
    OrderedJson top_json = OrderedJson::object();
    for (const TokenLogprob& top : token.top_logprobs()) {
      // Different ids may have the same text: the likeliest of them is meant.
      top_json.emplace(model_.TokenText(top.id), Finite(top.logprob));
    }
    top_json.emplace(text, Finite(token.logprob));  // Also when it is not among the likeliest.
    json["top_logprobs"].push_back(is_unknown ? OrderedJson(nullptr) : std::move(top_json));
  }
  return json;
}

}  // namespace lapidary
