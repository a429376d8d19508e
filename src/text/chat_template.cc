#include "text/chat_template.h"

#include "base/json_fields.h"
#include "base/read_file.h"

namespace lapidary {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kTurnEnd = "<turn|>\n";
constexpr std::string_view kModelTurn = "<|turn>model\n";

// The template inside a tokenizer_config.json; nothing when it has none.
Result<std::optional<std::string>> TemplateInConfig(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string content, ReadFile(path, kMaxConfigFileBytes));
  ASSIGN_OR_RETURN(const Json config, ParseJson(content, path.string()));
  if (!config.is_object()) return MakeError("{}: not a JSON object", path.string());
  const auto entry = config.find("chat_template");
  if (entry == config.end() || entry->is_null()) return std::optional<std::string>();
  if (entry->is_string()) return std::optional<std::string>(entry->get<std::string>());
  if (entry->is_array()) {
    for (const Json& named : *entry) {
      if (!named.is_object() || named.value("name", Json()) != "default") continue;
      const auto body = named.find("template");
      if (body != named.end() && body->is_string()) {
        return std::optional<std::string>(body->get<std::string>());
      }
    }
    return MakeError("{}: no chat template is named \"default\"", path.string());
  }
  return MakeError("{}: \"chat_template\" must be text or a list", path.string());
}

Status NormalizeToolCalls(OrderedJson* calls, size_t message_idx) {
  if (calls->is_null()) return {};
  if (!calls->is_array()) return MakeError("messages[{}].tool_calls must be a list", message_idx);
  for (size_t call_idx = 0; call_idx < calls->size(); ++call_idx) {
    OrderedJson& call = (*calls)[call_idx];
    const auto where = [&] {
      return fmt::format("messages[{}].tool_calls[{}]", message_idx, call_idx);
    };
    const auto function = call.is_object() ? call.find("function") : call.end();
    if (!call.is_object() || function == call.end() || !function->is_object()) {
      return MakeError("{} needs a \"function\" object", where());
    }
    const auto arguments = function->find("arguments");
    if (arguments == function->end()) {
      (*function)["arguments"] = OrderedJson::object();
    } else if (arguments->is_string()) {
      const std::string& text = arguments->get_ref<const std::string&>();
      OrderedJson parsed = text.empty()
                               ? OrderedJson::object()
                               : OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
      if (parsed.is_discarded()) return MakeError("{}: the arguments are not valid JSON", where());
      *arguments = std::move(parsed);
    }
    if (const OrderedJson& value = (*function)["arguments"];
        !value.is_object() && !value.is_null()) {
      return MakeError("{}: the arguments must be a JSON object", where());
    }
  }
  return {};
}

// Whether the trusted text at the end is `suffix`.
bool EndsWithTrusted(const std::vector<TextSegment>& segments, std::string_view suffix) {
  return !segments.empty() && segments.back().trusted && segments.back().text.ends_with(suffix);
}

}  // namespace

Result<ChatTemplate> ChatTemplate::FromString(std::string_view source,
                                              const jinja::Limits& limits) {
  auto compiled = jinja::Template::Parse(source, limits);
  if (!compiled.ok()) return MakeError("chat template: {}", compiled.error().message);
  return ChatTemplate(std::move(*compiled));
}

Result<ChatTemplate> ChatTemplate::FromFile(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string source, ReadFile(path, kMaxConfigFileBytes));
  auto parsed = FromString(source);
  if (!parsed.ok()) return MakeError("{}: {}", path.string(), parsed.error().message);
  return parsed;
}

Result<ChatTemplate> ChatTemplate::FromModelDir(const std::filesystem::path& model_dir) {
  std::error_code ignored;
  const auto own_file = model_dir / "chat_template.jinja";
  if (std::filesystem::exists(own_file, ignored)) return FromFile(own_file);
  const auto config_file = model_dir / "tokenizer_config.json";
  if (std::filesystem::exists(config_file, ignored)) {
    ASSIGN_OR_RETURN(const auto source, TemplateInConfig(config_file));
    if (source) {
      auto parsed = FromString(*source);
      if (!parsed.ok()) return MakeError("{}: {}", config_file.string(), parsed.error().message);
      return parsed;
    }
  }
  return MakeError(
      "{}: no chat template; expected chat_template.jinja, or \"chat_template\" in "
      "tokenizer_config.json",
      model_dir.string());
}

Result<std::vector<TextSegment>> ChatTemplate::Render(const ChatInput& input) const {
  std::vector<jinja::Variable> variables;
  if (!input.extra.is_object()) return MakeError("extra template variables must be an object");
  for (const auto& [name, value] : input.extra.items()) variables.push_back({name, value});
  variables.push_back({"messages", input.messages});
  if (input.tools) variables.push_back({"tools", *input.tools});
  variables.push_back({"add_generation_prompt", input.add_generation_prompt});
  if (input.enable_thinking) variables.push_back({"enable_thinking", *input.enable_thinking});
  if (input.preserve_thinking) variables.push_back({"preserve_thinking", *input.preserve_thinking});
  variables.push_back({"bos_token", input.bos_token, /*trusted=*/true});
  auto rendered = template_.Render(variables);
  if (!rendered.ok()) return MakeError("chat template: {}", rendered.error().message);
  return rendered;
}

Result<std::string> ChatTemplate::GenerationPrompt(const ChatInput& input) const {
  ChatInput probe = input;
  probe.messages = OrderedJson::array({{{"role", "user"}, {"content", "x"}}});
  ASSIGN_OR_RETURN(const auto open, Render(probe));
  probe.add_generation_prompt = false;
  ASSIGN_OR_RETURN(const auto closed, Render(probe));
  const std::string with_prompt = JoinSegments(open);
  const std::string without = JoinSegments(closed);
  if (!with_prompt.starts_with(without)) return std::string(kModelTurn);
  return with_prompt.substr(without.size());
}

Result<std::vector<TextSegment>> ChatTemplate::RenderPrompt(ChatInput input) const {
  RETURN_IF_ERROR(NormalizeMessages(&input.messages));
  if (input.continue_final_message) {
    const OrderedJson& last = input.messages.empty() ? OrderedJson() : input.messages.back();
    const bool has_text = last.is_object() && last.contains("content") &&
                          last["content"].is_string() && last["content"] != "";
    if (!has_text || last["role"] != "assistant") {
      return MakeError(
          "continue_final_message: the last message must be the assistant's, with some text");
    }
    input.add_generation_prompt = false;
  }
  ASSIGN_OR_RETURN(auto segments, Render(input));
  if (input.continue_final_message) {
    // Nothing but the template's own text follows what the message says.
    while (!segments.empty() && segments.back().trusted) segments.pop_back();
    if (segments.empty()) return MakeError("the chat template leaves the last message out");
    return segments;
  }
  if (!input.add_generation_prompt || !EndsWithTrusted(segments, kTurnEnd)) return segments;
  ASSIGN_OR_RETURN(const std::string prompt, GenerationPrompt(input));
  segments.back().text += prompt;
  return segments;
}

Status NormalizeMessages(OrderedJson* messages) {
  if (!messages->is_array()) return MakeError("messages must be a list");
  for (size_t message_idx = 0; message_idx < messages->size(); ++message_idx) {
    OrderedJson& message = (*messages)[message_idx];
    if (!message.is_object()) return MakeError("messages[{}] must be an object", message_idx);
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string()) {
      return MakeError("messages[{}] needs a \"role\"", message_idx);
    }
    const auto calls = message.find("tool_calls");
    if (calls != message.end()) RETURN_IF_ERROR(NormalizeToolCalls(&*calls, message_idx));
  }
  return {};
}

Result<ChatInput> ChatInputFromJson(const OrderedJson& json) {
  if (!json.is_object()) return MakeError("the input must be a JSON object");
  ChatInput input;
  const auto flag = [&](const char* name) -> Result<std::optional<bool>> {
    const auto entry = json.find(name);
    if (entry == json.end()) return std::optional<bool>();
    if (!entry->is_boolean()) return MakeError("\"{}\" must be true or false", name);
    return std::optional<bool>(entry->get<bool>());
  };
  const auto messages = json.find("messages");
  if (messages == json.end()) return MakeError("the input needs \"messages\"");
  input.messages = *messages;
  if (const auto tools = json.find("tools"); tools != json.end()) input.tools = *tools;
  ASSIGN_OR_RETURN(input.enable_thinking, flag("enable_thinking"));
  ASSIGN_OR_RETURN(input.preserve_thinking, flag("preserve_thinking"));
  ASSIGN_OR_RETURN(const auto add_generation_prompt, flag("add_generation_prompt"));
  input.add_generation_prompt = add_generation_prompt.value_or(true);
  if (const auto bos = json.find("bos_token"); bos != json.end()) {
    if (!bos->is_string()) return MakeError("\"bos_token\" must be text");
    input.bos_token = bos->get<std::string>();
  }
  if (const auto extra = json.find("chat_template_kwargs"); extra != json.end()) {
    if (!extra->is_object()) return MakeError("\"chat_template_kwargs\" must be an object");
    input.extra = *extra;
  }
  return input;
}

std::string JoinSegments(const std::vector<TextSegment>& segments) {
  std::string joined;
  for (const TextSegment& segment : segments) joined += segment.text;
  return joined;
}

bool EndsInsideThought(const std::vector<TextSegment>& segments) {
  return EndsWithTrusted(segments, "<|channel>thought\n");
}

}  // namespace lapidary
