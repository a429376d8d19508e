#include "server/responses_request.h"

#include "base/excerpt.h"
#include "server/ignored_log.h"
#include "server/random_id.h"
#include "server/request_json.h"

namespace lapidary {
namespace {

// {"type": "input_image", "image_url": URL, "detail": ...}: a chat has the last two in one object.
OrderedJson ImageToChat(const OrderedJson& part) {
  OrderedJson image = OrderedJson::object();
  if (part.contains("image_url")) image["url"] = part["image_url"];
  if (part.contains("detail")) image["detail"] = part["detail"];
  return {{"type", "image_url"}, {"image_url", std::move(image)}};
}

// Parts: "input_text" and "output_text" are texts here; what else there is, the chat parser judges.
OrderedJson ContentToChat(const OrderedJson& content) {
  if (!content.is_array()) return content;
  OrderedJson parts = OrderedJson::array();
  for (OrderedJson part : content) {
    const std::string type = part.is_object() ? StringOr(part, "type", "") : "";
    if (type == "input_text" || type == "output_text" || type == "summary_text" ||
        type == "reasoning_text") {
      part = {{"type", "text"}, {"text", part.contains("text") ? part["text"] : OrderedJson()}};
    } else if (type == "input_image") {
      part = ImageToChat(part);
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

std::string JoinTexts(const OrderedJson& item, const char* name) {
  std::string text;
  const auto parts = item.find(name);
  if (parts == item.end() || !parts->is_array()) return text;
  for (const OrderedJson& part : *parts) {
    if (part.is_object()) text += StringOr(part, "text", "");
  }
  return text;
}

// What the model said in one turn comes as several items and is one message here.
OrderedJson& AssistantMessage(OrderedJson* messages) {
  if (messages->empty() || messages->back()["role"] != "assistant") {
    messages->push_back({{"role", "assistant"}, {"content", nullptr}});
  }
  return messages->back();
}

ApiStatus AddItem(const OrderedJson& item, const std::string& where, OrderedJson* messages) {
  if (!item.is_object()) return BadRequest(where, "{} must be an object", where);
  const std::string type = StringOr(item, "type", "message");
  if (type == "message") {
    const std::string role = StringOr(item, "role", "");
    const OrderedJson content =
        item.contains("content") ? ContentToChat(item["content"]) : OrderedJson(nullptr);
    if (role == "assistant") {
      OrderedJson& message = AssistantMessage(messages);
      if (message["content"].is_null() && !message.contains("tool_calls")) {
        message["content"] = content;
        return {};
      }
    }
    messages->push_back({{"role", role}, {"content", content}});
    return {};
  }
  if (type == "reasoning") {
    std::string text = JoinTexts(item, "content");
    if (text.empty()) text = JoinTexts(item, "summary");
    if (!text.empty()) AssistantMessage(messages)["reasoning"] = text;
    return {};
  }
  if (type == "function_call") {
    OrderedJson& message = AssistantMessage(messages);
    message["tool_calls"].push_back(
        {{"id", StringOr(item, "call_id", "")},
         {"type", "function"},
         {"function",
          {{"name", StringOr(item, "name", "")}, {"arguments", StringOr(item, "arguments", "")}}}});
    return {};
  }
  if (type == "function_call_output") {
    OrderedJson output = item.contains("output") ? ContentToChat(item["output"]) : OrderedJson("");
    messages->push_back({{"role", "tool"},
                         {"tool_call_id", StringOr(item, "call_id", "")},
                         {"content", std::move(output)}});
    return {};
  }
  ApiError error = NotSupportedYet(where);
  error.message = fmt::format("{}: items of type '{}' are not supported", where, Excerpt(type));
  return error;
}

ApiStatus ReadInput(RequestFields* fields, OrderedJson* messages) {
  const OrderedJson* input = fields->Find("input");
  if (input == nullptr) return BadRequest("input", "'input' is missing");
  if (input->is_string()) {
    messages->push_back({{"role", "user"}, {"content", *input}});
    return {};
  }
  if (!input->is_array()) {
    return BadRequest("input", "'input' must be a string or a list of items");
  }
  for (size_t idx = 0; idx < input->size(); ++idx) {
    RETURN_IF_API_ERROR(AddItem((*input)[idx], fmt::format("input[{}]", idx), messages));
  }
  return {};
}

// Tools that run elsewhere (a search, a shell of the client's own kind) come along from clients
// like Codex whatever the model: the model is told of functions alone.
ApiStatus ReadTools(RequestFields* fields, OrderedJson* chat) {
  const OrderedJson* tools = fields->Find("tools");
  if (tools == nullptr) return {};
  if (!tools->is_array()) return BadRequest("tools", "'tools' must be a list");
  OrderedJson functions = OrderedJson::array();
  OrderedJson skipped = OrderedJson::array();
  for (size_t idx = 0; idx < tools->size(); ++idx) {
    const OrderedJson& tool = (*tools)[idx];
    const std::string where = fmt::format("tools[{}]", idx);
    const std::string type = tool.is_object() ? StringOr(tool, "type", "") : "";
    if (type.empty()) return BadRequest(where, "{} must be an object with a \"type\"", where);
    if (type != "function") {
      skipped.push_back(Excerpt(type));
      continue;
    }
    OrderedJson function = tool;
    function.erase("type");
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (!skipped.empty()) {
    LogIgnored(
        fmt::format("tools are left out whose types are not run here: {}", DumpJson(skipped)));
  }
  (*chat)["tools"] = std::move(functions);
  return {};
}

// What else a response is asked to hold. Of all that may be named only log-probabilities could be
// had, and those are not.
void CheckInclude(RequestFields* fields) {
  const OrderedJson* include = fields->Find("include");
  if (include == nullptr) return;
  if (!include->is_array()) {
    return fields->Fail(BadRequest("include", "'include' must be a list of strings"));
  }
  for (const OrderedJson& name : *include) {
    if (name != "message.output_text.logprobs") continue;
    fields->Fail(BadRequest("include",
                            "responses hold no log-probabilities here, so 'include' must not name "
                            "message.output_text.logprobs; /v1/chat/completions gives them"));
  }
}

// A function's name stands one level higher here than in a chat.
OrderedJson FunctionToChat(const OrderedJson& tool) {
  if (!tool.is_object() || StringOr(tool, "type", "") != "function") return tool;
  return {{"type", "function"}, {"function", {{"name", StringOr(tool, "name", "")}}}};
}

OrderedJson ToolChoiceToChat(const OrderedJson& choice) {
  if (!choice.is_object() || StringOr(choice, "type", "") != "allowed_tools") {
    return FunctionToChat(choice);
  }
  OrderedJson allowed = choice;
  allowed.erase("type");
  if (allowed.contains("tools") && allowed["tools"].is_array()) {
    for (OrderedJson& tool : allowed["tools"]) tool = FunctionToChat(tool);
  }
  return {{"type", "allowed_tools"}, {"allowed_tools", std::move(allowed)}};
}

void ReadTextFormat(RequestFields* fields, OrderedJson* chat) {
  const OrderedJson* text = fields->Find("text");
  if (text == nullptr || !text->is_object() || !text->contains("format")) return;
  const OrderedJson& format = (*text)["format"];
  if (!format.is_object() || StringOr(format, "type", "") != "json_schema") {
    (*chat)["response_format"] = format;
    return;
  }
  OrderedJson schema = format;
  schema.erase("type");
  (*chat)["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

}  // namespace

ApiStatus ResponsesToChat(const OrderedJson& body, OrderedJson* chat, size_t* num_instructions,
                          ResponsesExtras* extras) {
  RequestFields fields(body);
  *chat = OrderedJson::object();
  OrderedJson messages = OrderedJson::array();
  const std::string instructions = fields.String("instructions", "");
  if (!instructions.empty()) {
    messages.push_back({{"role", "system"}, {"content", instructions}});
  }
  *num_instructions = messages.size();
  RETURN_IF_API_ERROR(fields.status());
  RETURN_IF_API_ERROR(ReadInput(&fields, &messages));
  (*chat)["messages"] = std::move(messages);
  RETURN_IF_API_ERROR(ReadTools(&fields, chat));
  ReadTextFormat(&fields, chat);
  if (const OrderedJson* choice = fields.Find("tool_choice")) {
    (*chat)["tool_choice"] = ToolChoiceToChat(*choice);
  }
  if (const OrderedJson* reasoning = fields.Find("reasoning")) (*chat)["reasoning"] = *reasoning;
  if (const OrderedJson* limit = fields.Find("max_output_tokens")) {
    (*chat)["max_completion_tokens"] = *limit;
  }
  extras->previous_response_id = fields.String("previous_response_id", "");
  extras->store = fields.Bool("store", true);
  fields.Refuse("background", false);
  fields.Refuse("conversation");
  fields.Refuse("prompt");
  fields.Refuse("top_logprobs", 0);
  CheckInclude(&fields);
  fields.Accept({"truncation", "max_tool_calls", "stream_options", "client_metadata"});
  RETURN_IF_API_ERROR(fields.status());
  // The rest is called the same: temperature, top_p, stream, parallel_tool_calls, our extensions.
  for (const auto& [name, value] : body.items()) {
    if (!fields.IsKnown(name)) (*chat)[name] = value;
  }
  for (const char* name : {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls",
                           "previous_response_id", "reasoning", "temperature", "text",
                           "tool_choice", "tools", "top_p", "truncation", "user"}) {
    extras->echoed[name] = body.contains(name) ? body[name] : OrderedJson(nullptr);
  }
  const auto default_to = [&](const char* name, OrderedJson value) {
    if (extras->echoed[name].is_null()) extras->echoed[name] = std::move(value);
  };
  default_to("metadata", OrderedJson::object());
  default_to("parallel_tool_calls", true);
  default_to("text", {{"format", {{"type", "text"}}}});
  default_to("tool_choice", "auto");
  default_to("tools", OrderedJson::array());
  default_to("truncation", "disabled");
  return {};
}

std::string ResponseInputItems(const OrderedJson& body) {
  const OrderedJson& input = body["input"];
  const auto text_part = [](const char* type, const OrderedJson& text) {
    return OrderedJson::array({{{"type", type}, {"text", text}}});
  };
  if (input.is_string()) {
    const OrderedJson item = {{"id", RandomId("msg_")},
                              {"type", "message"},
                              {"status", "completed"},
                              {"role", "user"},
                              {"content", text_part("input_text", input)}};
    return fmt::format("[{}]", DumpJson(item));
  }
  // Item by item: a tree of all of them takes many times their text.
  std::string items = "[";
  for (OrderedJson item : input) {
    const std::string type = StringOr(item, "type", "message");
    item["type"] = type;
    if (StringOr(item, "id", "").empty()) {
      const bool is_call = type == "function_call" || type == "function_call_output";
      item["id"] = RandomId(type == "reasoning" ? "rs_" : is_call ? "fc_" : "msg_");
    }
    if (type == "message" && item.contains("content") && item["content"].is_string()) {
      const bool is_answer = StringOr(item, "role", "") == "assistant";
      item["content"] = text_part(is_answer ? "output_text" : "input_text", item["content"]);
    }
    if (!item.contains("status")) item["status"] = "completed";
    if (items.size() > 1) items += ',';
    items += DumpJson(item);
  }
  return items + "]";
}

}  // namespace lapidary
