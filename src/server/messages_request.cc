#include "server/messages_request.h"

#include "base/excerpt.h"
#include "server/request_json.h"

namespace lapidary {
namespace {

// Claude Code begins its system prompt with a line that differs in every request, for Anthropic's
// accounts: in the prompt it would leave the prefix cache nothing.
std::string WithoutBillingLine(const std::string& text) {
  if (!text.starts_with("x-anthropic-billing-header:")) return text;
  const size_t end = text.find('\n');
  return end == std::string::npos ? "" : text.substr(end + 1);
}

// The same of a system prompt, which is text or blocks of it.
OrderedJson WithoutBilling(const OrderedJson& system) {
  if (system.is_string()) return WithoutBillingLine(system);
  if (!system.is_array()) return system;
  OrderedJson kept = OrderedJson::array();
  for (OrderedJson block : system) {
    const std::string text = block.is_object() ? StringOr(block, "text", "") : "";
    const std::string rest = WithoutBillingLine(text);
    if (rest.empty() && !text.empty()) continue;
    if (rest.size() < text.size()) block["text"] = rest;
    kept.push_back(std::move(block));
  }
  return kept;
}

// {"type": "document", "title", "context", "source": {"type": "text", "data"} or {"type":
// "content", "content": text or blocks of it}}.
ApiStatus DocumentToText(const OrderedJson& block, const std::string& where, std::string* text);

// A tool's result, or a system prompt: text, or blocks of it.
ApiStatus ReadTexts(const OrderedJson& content, const std::string& where, OrderedJson* text) {
  if (content.is_string()) {
    *text = content;
    return {};
  }
  if (!content.is_array()) {
    return BadRequest(where, "{} must be a string or a list of text blocks", where);
  }
  std::string joined;
  for (const OrderedJson& block : content) {
    const std::string type = block.is_object() ? StringOr(block, "type", "") : "";
    std::string part;
    if (type == "document") {
      RETURN_IF_API_ERROR(DocumentToText(block, where, &part));
    } else if (type == "text") {
      part = StringOr(block, "text", "");
    } else {
      return BadRequest(where, "{} may hold text blocks only", where);
    }
    if (!joined.empty()) joined += "\n";
    joined += part;
  }
  *text = joined;
  return {};
}

ApiStatus DocumentToText(const OrderedJson& block, const std::string& where, std::string* text) {
  const OrderedJson source = block.contains("source") ? block["source"] : OrderedJson();
  const std::string type = source.is_object() ? StringOr(source, "type", "") : "";
  OrderedJson data;
  if (type == "text") {
    data = StringOr(source, "data", "");
  } else if (type == "content" && source.contains("content")) {
    RETURN_IF_API_ERROR(ReadTexts(source["content"], where + ".source.content", &data));
  } else {
    return BadRequest(where,
                      "{}: documents of type '{}' are not read here; send their text, as a source "
                      "of type 'text'",
                      where, Excerpt(type));
  }
  for (const char* name : {"title", "context"}) {
    if (const std::string line = StringOr(block, name, ""); !line.empty()) *text += line + "\n\n";
  }
  *text += data.get_ref<const std::string&>();
  return {};
}

// A block {"type": "image", "source": {"type": "base64", "media_type", "data"} or {"type": "url",
// "url"}} as a part of a chat.
ApiStatus ImageToChat(const OrderedJson& block, const std::string& where, OrderedJson* part) {
  const OrderedJson source = block.contains("source") ? block["source"] : OrderedJson();
  const std::string type = source.is_object() ? StringOr(source, "type", "") : "";
  std::string url;
  if (type == "base64") {
    url = fmt::format("data:{};base64,{}", StringOr(source, "media_type", ""),
                      StringOr(source, "data", ""));
  } else if (type == "url") {
    url = StringOr(source, "url", "");
  } else {
    return BadRequest(where, "{} must be of type base64 or url", where);
  }
  *part = {{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}};
  return {};
}

// Of a user's message: results of tools become messages of their own, in front of what else it
// says.
ApiStatus AddUserBlocks(const OrderedJson& blocks, const std::string& where,
                        OrderedJson* messages) {
  OrderedJson parts = OrderedJson::array();
  for (size_t idx = 0; idx < blocks.size(); ++idx) {
    const OrderedJson& block = blocks[idx];
    const std::string at = fmt::format("{}[{}]", where, idx);
    if (!block.is_object()) return BadRequest(at, "{} must be an object", at);
    const std::string type = StringOr(block, "type", "");
    if (type == "document") {
      std::string text;
      RETURN_IF_API_ERROR(DocumentToText(block, at, &text));
      parts.push_back({{"type", "text"}, {"text", std::move(text)}});
      continue;
    }
    if (type == "image") {
      OrderedJson part;
      RETURN_IF_API_ERROR(ImageToChat(block, at + ".source", &part));
      parts.push_back(std::move(part));
      continue;
    }
    if (type != "tool_result") {
      OrderedJson part = block;
      part.erase("cache_control");
      part.erase("citations");
      parts.push_back(std::move(part));
      continue;
    }
    OrderedJson text = "";
    if (block.contains("content") && !block["content"].is_null()) {
      RETURN_IF_API_ERROR(ReadTexts(block["content"], at + ".content", &text));
    }
    messages->push_back({{"role", "tool"},
                         {"tool_call_id", StringOr(block, "tool_use_id", "")},
                         {"content", std::move(text)}});
  }
  if (!parts.empty()) messages->push_back({{"role", "user"}, {"content", std::move(parts)}});
  return {};
}

ApiStatus AddAssistantBlocks(const OrderedJson& blocks, const std::string& where,
                             OrderedJson* messages) {
  OrderedJson message = {{"role", "assistant"}, {"content", nullptr}};
  std::string text;
  for (size_t idx = 0; idx < blocks.size(); ++idx) {
    const OrderedJson& block = blocks[idx];
    const std::string at = fmt::format("{}[{}]", where, idx);
    const std::string type = block.is_object() ? StringOr(block, "type", "") : "";
    if (type == "text") {
      text += StringOr(block, "text", "");
    } else if (type == "thinking") {
      message["reasoning"] = StringOr(block, "thinking", "");
    } else if (type == "tool_use") {
      message["tool_calls"].push_back(
          {{"id", StringOr(block, "id", "")},
           {"type", "function"},
           {"function",
            {{"name", StringOr(block, "name", "")},
             {"arguments", block.contains("input") ? block["input"] : OrderedJson::object()}}}});
    } else if (type != "redacted_thinking") {
      return BadRequest(at, "{} must be a block of type text, thinking or tool_use", at);
    }
  }
  if (!text.empty()) message["content"] = text;
  messages->push_back(std::move(message));
  return {};
}

ApiStatus AddMessage(const OrderedJson& message, const std::string& where, OrderedJson* messages) {
  if (!message.is_object()) return BadRequest(where, "{} must be an object", where);
  const std::string role = StringOr(message, "role", "");
  if (role != "user" && role != "assistant" && role != "system") {
    return BadRequest(where + ".role", "{}.role must be user or assistant", where);
  }
  const OrderedJson content =
      message.contains("content") ? message["content"] : OrderedJson(nullptr);
  if (!content.is_array()) {
    messages->push_back({{"role", role}, {"content", content}});
    return {};
  }
  return role == "assistant" ? AddAssistantBlocks(content, where + ".content", messages)
                             : AddUserBlocks(content, where + ".content", messages);
}

ApiStatus ReadTools(const OrderedJson& tools, OrderedJson* functions) {
  if (!tools.is_array()) return BadRequest("tools", "'tools' must be a list");
  *functions = OrderedJson::array();
  for (size_t idx = 0; idx < tools.size(); ++idx) {
    const OrderedJson& tool = tools[idx];
    const std::string where = fmt::format("tools[{}]", idx);
    if (!tool.is_object() || !tool.contains("input_schema")) {
      return BadRequest(where, "{} needs a \"name\" and an \"input_schema\"", where);
    }
    OrderedJson function = {{"name", tool.contains("name") ? tool["name"] : OrderedJson(nullptr)}};
    if (tool.contains("description")) function["description"] = tool["description"];
    if (tool.contains("strict")) function["strict"] = tool["strict"];
    function["parameters"] = tool["input_schema"];
    functions->push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return {};
}

void ReadToolChoice(const OrderedJson& choice, OrderedJson* chat) {
  const std::string type = choice.is_object() ? StringOr(choice, "type", "") : "";
  if (type == "any") {
    (*chat)["tool_choice"] = "required";
  } else if (type == "tool") {
    (*chat)["tool_choice"] = {{"type", "function"},
                              {"function", {{"name", StringOr(choice, "name", "")}}}};
  } else {
    (*chat)["tool_choice"] = type;
  }
  const auto single = choice.find("disable_parallel_tool_use");
  if (single != choice.end() && *single == true) (*chat)["parallel_tool_calls"] = false;
}

// {"format": {"type": "json_schema", "schema": {...}}}; an effort changes nothing here.
ApiStatus ReadOutputConfig(const OrderedJson& config, OrderedJson* chat) {
  if (!config.is_object()) return BadRequest("output_config", "'output_config' must be an object");
  const auto format = config.find("format");
  if (format == config.end() || format->is_null()) return {};
  if (!format->is_object() || StringOr(*format, "type", "") != "json_schema" ||
      !format->contains("schema")) {
    return BadRequest("output_config.format",
                      "'output_config.format' must be of type json_schema, with a schema");
  }
  (*chat)["response_format"] = {{"type", "json_schema"},
                                {"json_schema", {{"schema", (*format)["schema"]}}}};
  return {};
}

}  // namespace

ApiStatus MessagesToChat(const OrderedJson& body, bool needs_limit, OrderedJson* chat) {
  RequestFields fields(body);
  *chat = OrderedJson::object();
  OrderedJson messages = OrderedJson::array();
  if (const OrderedJson* system = fields.Find("system")) {
    OrderedJson text;
    RETURN_IF_API_ERROR(ReadTexts(WithoutBilling(*system), "system", &text));
    if (text != "") messages.push_back({{"role", "system"}, {"content", std::move(text)}});
  }
  const OrderedJson* given = fields.Find("messages");
  if (given == nullptr || !given->is_array() || given->empty()) {
    return BadRequest("messages", "'messages' must be a list of at least one message");
  }
  for (size_t idx = 0; idx < given->size(); ++idx) {
    RETURN_IF_API_ERROR(AddMessage((*given)[idx], fmt::format("messages[{}]", idx), &messages));
  }
  // As there, an answer that is begun is gone on with.
  if (messages.back()["role"] == "assistant" && messages.back()["content"].is_string()) {
    (*chat)["continue_final_message"] = true;
    (*chat)["add_generation_prompt"] = false;
  }
  (*chat)["messages"] = std::move(messages);
  if (const OrderedJson* tools = fields.Find("tools")) {
    RETURN_IF_API_ERROR(ReadTools(*tools, &(*chat)["tools"]));
  }
  if (const OrderedJson* choice = fields.Find("tool_choice")) ReadToolChoice(*choice, chat);
  if (const OrderedJson* config = fields.Find("output_config")) {
    RETURN_IF_API_ERROR(ReadOutputConfig(*config, chat));
  }
  if (const OrderedJson* stop = fields.Find("stop_sequences")) (*chat)["stop"] = *stop;
  const OrderedJson* limit = fields.Find("max_tokens");
  if (limit != nullptr) (*chat)["max_tokens"] = *limit;
  if (limit == nullptr && needs_limit) return BadRequest("max_tokens", "'max_tokens' is missing");
  fields.Accept({"cache_control", "container", "context_management", "mcp_servers", "inference_geo",
                 "betas"});
  // The rest is called the same: temperature, top_k, top_p, stream, thinking, our extensions.
  for (const auto& [name, value] : body.items()) {
    if (!fields.IsKnown(name)) (*chat)[name] = value;
  }
  return {};
}

}  // namespace lapidary
