#include "server/ollama_request.h"

#include <algorithm>
#include <array>
#include <vector>

#include "server/generation_request.h"
#include "server/request_json.h"

namespace lapidary {
namespace {

const OrderedJson* FindList(const OrderedJson& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_array() && !it->empty() ? &*it : nullptr;
}

// Text, or where there are images parts of both. Images come as base64 without a type, which no
// decoder needs.
ApiStatus ContentToChat(OrderedJson text, const OrderedJson* images, const std::string& where,
                        OrderedJson* content) {
  if (images == nullptr) {
    *content = std::move(text);
    return {};
  }
  *content = OrderedJson::array();
  for (const OrderedJson& image : *images) {
    if (!image.is_string()) {
      return BadRequest(where, "{} must be a list of images in base64", where);
    }
    std::string url = image.get<std::string>();
    if (!url.starts_with("data:")) url.insert(0, "data:image/jpeg;base64,");
    content->push_back({{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}});
  }
  content->push_back({{"type", "text"}, {"text", std::move(text)}});
  return {};
}

// Calls have no ids there; results follow them in their order, or name their function.
class CallIds {
 public:
  OrderedJson Name(const OrderedJson& calls) {
    OrderedJson named = OrderedJson::array();
    open_.clear();
    for (OrderedJson call : calls) {
      if (!call.is_object()) call = OrderedJson::object();
      std::string id = StringOr(call, "id", "");
      if (id.empty()) id = fmt::format("call_{}", num_calls_);
      ++num_calls_;
      const OrderedJson function =
          call.contains("function") ? call["function"] : OrderedJson::object();
      open_.push_back({id, function.is_object() ? StringOr(function, "name", "") : ""});
      call["id"] = std::move(id);
      call["type"] = "function";
      named.push_back(std::move(call));
    }
    return named;
  }

  // Of the call that a result belongs to; empty where there is none.
  std::string Take(const std::string& name) {
    auto it = std::find_if(open_.begin(), open_.end(),
                           [&](const Call& call) { return call.name == name; });
    if (it == open_.end()) it = open_.begin();
    if (it == open_.end()) return "";
    std::string id = std::move(it->id);
    open_.erase(it);
    return id;
  }

 private:
  struct Call {
    std::string id;
    std::string name;
  };
  std::vector<Call> open_;  // without a result so far
  int num_calls_ = 0;
};

ApiStatus MessagesToChat(const OrderedJson& given, OrderedJson* messages) {
  CallIds ids;
  for (size_t idx = 0; idx < given.size(); ++idx) {
    const OrderedJson& message = given[idx];
    const std::string where = fmt::format("messages[{}]", idx);
    if (!message.is_object()) return BadRequest(where, "{} must be an object", where);
    OrderedJson translated = {{"role", StringOr(message, "role", "")}};
    OrderedJson text = message.contains("content") ? message["content"] : OrderedJson("");
    if (text.is_null()) text = "";
    RETURN_IF_API_ERROR(ContentToChat(std::move(text), FindList(message, "images"),
                                      where + ".images", &translated["content"]));
    if (const std::string thinking = StringOr(message, "thinking", ""); !thinking.empty()) {
      translated["reasoning"] = thinking;
    }
    if (const OrderedJson* calls = FindList(message, "tool_calls")) {
      translated["tool_calls"] = ids.Name(*calls);
    }
    if (translated["role"] == "tool") {
      const std::string name = StringOr(message, "tool_name", StringOr(message, "name", ""));
      std::string id = StringOr(message, "tool_call_id", "");
      if (id.empty()) id = ids.Take(name);
      translated["tool_call_id"] = std::move(id);
      if (!name.empty()) translated["name"] = name;
    }
    messages->push_back(std::move(translated));
  }
  return {};
}

ApiStatus PromptToChat(RequestFields* fields, const OrderedJson& body, OrderedJson* messages) {
  if (const std::string system = fields->String("system", ""); !system.empty()) {
    messages->push_back({{"role", "system"}, {"content", system}});
  }
  const std::string prompt = fields->String("prompt", "");
  fields->Accept({"images"});
  fields->Refuse("raw", false);
  fields->Refuse("suffix", "");
  fields->Refuse("template", "");
  fields->Refuse("context", OrderedJson::array());
  RETURN_IF_API_ERROR(fields->status());
  OrderedJson message = {{"role", "user"}};
  RETURN_IF_API_ERROR(
      ContentToChat(prompt, FindList(body, "images"), "images", &message["content"]));
  messages->push_back(std::move(message));
  return {};
}

ApiStatus OptionsToChat(const OrderedJson& options, OrderedJson* chat) {
  if (!options.is_object()) return BadRequest("options", "'options' must be an object");
  struct Renamed {
    const char* name;
    const char* here;
  };
  constexpr std::array<Renamed, 9> kOptions = {{{"temperature", "temperature"},
                                                {"top_k", "top_k"},
                                                {"top_p", "top_p"},
                                                {"min_p", "min_p"},
                                                {"seed", "seed"},
                                                {"stop", "stop"},
                                                {"repeat_penalty", "repetition_penalty"},
                                                {"presence_penalty", "presence_penalty"},
                                                {"frequency_penalty", "frequency_penalty"}}};
  RequestFields fields(options, "options.");
  for (const Renamed& option : kOptions) {
    if (const OrderedJson* value = fields.Find(option.name)) (*chat)[option.here] = *value;
  }
  // Below zero: until the answer ends, or the context does.
  const int64_t limit = fields.Int("num_predict", -1, INT32_MIN, INT32_MAX);
  if (limit >= 0) (*chat)["max_tokens"] = limit;
  // How a model is loaded is said when the server starts; the rest of the samplers are not there.
  fields.Accept({"num_ctx", "num_keep", "num_gpu", "main_gpu", "num_thread", "num_batch",
                 "use_mmap", "use_mlock", "low_vram", "numa", "vocab_only", "f16_kv",
                 "repeat_last_n", "penalize_newline", "typical_p", "tfs_z", "mirostat",
                 "mirostat_eta", "mirostat_tau"});
  RETURN_IF_API_ERROR(fields.status());
  LogUnknownFields(fields);
  return {};
}

ApiStatus FormatToChat(const OrderedJson& format, OrderedJson* chat) {
  if (format == "") return {};
  if (format == "json") {
    (*chat)["response_format"] = {{"type", "json_object"}};
    return {};
  }
  if (!format.is_object()) {
    return BadRequest("format", "'format' must be \"json\" or a JSON schema");
  }
  (*chat)["response_format"] = {{"type", "json_schema"},
                                {"json_schema", {{"name", "answer"}, {"schema", format}}}};
  return {};
}

ApiStatus ThinkToChat(const OrderedJson& think, OrderedJson* chat) {
  const bool is_level = think == "low" || think == "medium" || think == "high";
  if (!is_level && !think.is_boolean()) {
    return BadRequest("think", "'think' must be true, false, \"low\", \"medium\" or \"high\"");
  }
  (*chat)["chat_template_kwargs"] = {{"enable_thinking", is_level || think == true}};
  return {};
}

}  // namespace

bool IsOllamaLoad(OllamaKind kind, const OrderedJson& body) {
  if (kind == OllamaKind::kGenerate) {
    return StringOr(body, "prompt", "").empty() && FindList(body, "images") == nullptr;
  }
  const auto messages = body.find("messages");
  return messages == body.end() || messages->is_null() ||
         (messages->is_array() && messages->empty());
}

ApiStatus OllamaToChat(OllamaKind kind, const OrderedJson& body, OrderedJson* chat) {
  RequestFields fields(body);
  *chat = {{"model", fields.String("model", "")}, {"stream", fields.Bool("stream", true)}};
  OrderedJson messages = OrderedJson::array();
  if (kind == OllamaKind::kGenerate) {
    RETURN_IF_API_ERROR(PromptToChat(&fields, body, &messages));
  } else if (const OrderedJson* given = fields.Find("messages")) {
    if (!given->is_array()) return BadRequest("messages", "'messages' must be a list");
    RETURN_IF_API_ERROR(MessagesToChat(*given, &messages));
  }
  (*chat)["messages"] = std::move(messages);
  if (const OrderedJson* tools = fields.Find("tools")) (*chat)["tools"] = *tools;
  if (const OrderedJson* options = fields.Find("options")) {
    RETURN_IF_API_ERROR(OptionsToChat(*options, chat));
  }
  if (const OrderedJson* format = fields.Find("format")) {
    RETURN_IF_API_ERROR(FormatToChat(*format, chat));
  }
  if (const OrderedJson* think = fields.Find("think")) {
    RETURN_IF_API_ERROR(ThinkToChat(*think, chat));
  }
  fields.Refuse("logprobs", false);
  fields.Refuse("top_logprobs", 0);
  fields.Accept({"keep_alive", "truncate", "shift"});
  if (!fields.status()) LogUnknownFields(fields);
  return fields.status();
}

}  // namespace lapidary
