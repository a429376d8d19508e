#include "server/chat_messages.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/excerpt.h"
#include "server/request_json.h"

namespace lapidary {
namespace {

bool HasString(const OrderedJson& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string();
}

bool HasValue(const OrderedJson& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && !it->is_null();
}

ApiStatus CheckPart(const OrderedJson& part, const std::string& where) {
  if (!part.is_object() || !HasString(part, "type")) {
    return BadRequest(where, "{} must be an object with a type", where);
  }
  const std::string type = part["type"];
  if (type == "text" || type == "refusal") {
    if (HasString(part, type.c_str())) return {};
    return BadRequest(where, "{} needs a string \"{}\"", where, type);
  }
  constexpr std::array kMedia = {"input_image", "image", "audio", "file"};
  if (std::find(kMedia.begin(), kMedia.end(), type) == kMedia.end()) {
    return BadRequest(where, "{} has a type that is not known; use \"text\"", where);
  }
  ApiError error = NotSupportedYet(where);
  error.message =
      fmt::format("{}: content of type \"{}\" is not supported yet", where, Excerpt(type));
  return error;
}

// A string stays one; parts are reduced to their texts and to placeholders of media.
ApiStatus ReadContent(const OrderedJson& content, const std::string& where, OrderedJson* checked,
                      RequestMedia* media) {
  if (content.is_string()) {
    *checked = content;
    return {};
  }
  if (!content.is_array()) {
    return BadRequest(where, "{} must be a string or a list of parts", where);
  }
  *checked = OrderedJson::array();
  for (size_t part_idx = 0; part_idx < content.size(); ++part_idx) {
    const OrderedJson& part = content[part_idx];
    const std::string at = fmt::format("{}[{}]", where, part_idx);
    if (part.is_object() && HasString(part, "type") && IsMediaPart(std::string(part["type"]))) {
      OrderedJson& placeholder = checked->emplace_back();
      RETURN_IF_API_ERROR(ReadMediaPart(part, at, media, &placeholder));
      continue;
    }
    RETURN_IF_API_ERROR(CheckPart(part, at));
    const std::string type = part["type"];
    checked->push_back({{"type", "text"}, {"text", part[type]}});
  }
  return {};
}

ApiStatus ReadToolCalls(const OrderedJson& calls, const std::string& where, OrderedJson* checked) {
  if (!calls.is_array()) return BadRequest(where, "{} must be a list", where);
  *checked = OrderedJson::array();
  for (size_t call_idx = 0; call_idx < calls.size(); ++call_idx) {
    const OrderedJson& call = calls[call_idx];
    const std::string at = fmt::format("{}[{}]", where, call_idx);
    if (!call.is_object() || !HasValue(call, "function") || !call["function"].is_object() ||
        !HasString(call["function"], "name")) {
      return BadRequest(at, "{} needs a \"function\" with a \"name\"", at);
    }
    const OrderedJson& function = call["function"];
    OrderedJson arguments = HasValue(function, "arguments") ? function["arguments"] : "";
    if (arguments.is_string()) {
      const std::string text = arguments;
      if (text.empty()) {
        arguments = OrderedJson::object();
      } else if (ParseRequestJson(text, &arguments)) {
        arguments = nullptr;
      }
    }
    if (!arguments.is_object()) {
      return BadRequest(at, "{}: the arguments must be a JSON object", at);
    }
    OrderedJson copy = {{"type", "function"},
                        {"function", {{"name", function["name"]}, {"arguments", arguments}}}};
    if (HasString(call, "id")) copy["id"] = call["id"];
    checked->push_back(std::move(copy));
  }
  return {};
}

ApiStatus ReadMessage(const OrderedJson& message, const std::string& where, OrderedJson* checked,
                      RequestMedia* media) {
  if (!message.is_object()) return BadRequest(where, "{} must be an object", where);
  constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                      "tool"};
  const std::string role = HasString(message, "role") ? message["role"] : "";
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    return BadRequest(where + ".role", "{}.role must be one of {}", where, fmt::join(kRoles, ", "));
  }
  *checked = {{"role", role}};
  if (HasValue(message, "content")) {
    RETURN_IF_API_ERROR(
        ReadContent(message["content"], where + ".content", &(*checked)["content"], media));
  } else if (role != "assistant") {
    return BadRequest(where + ".content", "{}.content is missing", where);
  } else {
    (*checked)["content"] = nullptr;
  }
  for (const char* name : {"name", "tool_call_id", "reasoning", "reasoning_content"}) {
    if (!HasValue(message, name)) continue;
    if (!HasString(message, name)) {
      return BadRequest(fmt::format("{}.{}", where, name), "{}.{} must be a string", where, name);
    }
    (*checked)[name] = message[name];
  }
  if (role == "assistant" && HasValue(message, "tool_calls")) {
    OrderedJson calls;
    RETURN_IF_API_ERROR(ReadToolCalls(message["tool_calls"], where + ".tool_calls", &calls));
    if (!calls.empty()) (*checked)["tool_calls"] = std::move(calls);
  }
  return {};
}

}  // namespace

ApiStatus ReadMessages(const OrderedJson& messages, OrderedJson* checked, RequestMedia* media) {
  if (!messages.is_array() || messages.empty()) {
    return BadRequest("messages", "'messages' must be a list of at least one message");
  }
  *checked = OrderedJson::array();
  for (size_t message_idx = 0; message_idx < messages.size(); ++message_idx) {
    OrderedJson message;
    RETURN_IF_API_ERROR(ReadMessage(messages[message_idx], fmt::format("messages[{}]", message_idx),
                                    &message, media));
    checked->push_back(std::move(message));
  }
  return {};
}

ApiStatus CheckTools(const OrderedJson& tools) {
  if (!tools.is_array()) return BadRequest("tools", "'tools' must be a list");
  for (size_t tool_idx = 0; tool_idx < tools.size(); ++tool_idx) {
    const OrderedJson& tool = tools[tool_idx];
    const std::string where = fmt::format("tools[{}]", tool_idx);
    if (!tool.is_object() || !HasString(tool, "type") || tool["type"] != "function" ||
        !HasValue(tool, "function") || !tool["function"].is_object()) {
      return BadRequest(where, "{} must have the type \"function\" and a \"function\"", where);
    }
    const OrderedJson& function = tool["function"];
    if (!HasString(function, "name")) {
      return BadRequest(where, "{}.function needs a \"name\"", where);
    }
    if (HasValue(function, "parameters") && !function["parameters"].is_object()) {
      return BadRequest(where, "{}.function.parameters must be a JSON schema object", where);
    }
  }
  return {};
}

}  // namespace lapidary
