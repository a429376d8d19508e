#include "text/tool_arguments.h"

#include <algorithm>

namespace lapidary {
namespace {

using Json = nlohmann::ordered_json;

std::string_view TrimBlanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

const Json* Member(const Json* schema, const char* key) {
  if (schema == nullptr || !schema->is_object()) return nullptr;
  const auto found = schema->find(key);
  return found == schema->end() ? nullptr : &*found;
}

// Whether the schema allows values of this type; true also when it says nothing.
bool Allows(const Json& schema, std::string_view type, int depth = 0) {
  if (!schema.is_object() || depth > 4) return true;
  if (const Json* own = Member(&schema, "type")) {
    if (own->is_string()) return own->get_ref<const std::string&>() == type;
    if (own->is_array()) return std::find(own->begin(), own->end(), Json(type)) != own->end();
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json* options = Member(&schema, key);
    if (options == nullptr || !options->is_array()) continue;
    return std::any_of(options->begin(), options->end(),
                       [&](const Json& option) { return Allows(option, type, depth + 1); });
  }
  return true;
}

bool AllowsValue(const Json& schema, const Json& value) {
  if (value.is_null()) return true;  // A null is meant as one, whatever the schema says.
  if (value.is_boolean()) return Allows(schema, "boolean");
  if (value.is_number_float()) return Allows(schema, "number");
  return Allows(schema, "number") || Allows(schema, "integer");
}

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool IsBracket(char c) { return c == '{' || c == '}' || c == '[' || c == ']'; }

// As part of a JSON string.
void AppendEscaped(char c, std::string* json) {
  constexpr std::string_view kNamed = "\"\\\b\f\n\r\t";
  constexpr std::string_view kNames = "\"\\bfnrt";
  if (const size_t at = kNamed.find(c); at != std::string_view::npos) {
    *json += '\\';
    *json += kNames[at];
  } else if (static_cast<uint8_t>(c) < 0x20) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    *json += "\\u00";
    *json += kDigits[static_cast<uint8_t>(c) / 16];
    *json += kDigits[static_cast<uint8_t>(c) % 16];
  } else {
    *json += c;
  }
}

void AppendString(std::string_view text, std::string* json) {
  *json += '"';
  for (const char c : text) AppendEscaped(c, json);
  *json += '"';
}

}  // namespace

std::string ToolCallText::Readable() const {
  std::string readable;
  size_t copied = 0;
  for (size_t quote : quotes) {
    readable.append(text, copied, quote - copied);
    readable += '"';
    copied = quote;
  }
  readable.append(text, copied);
  return readable;
}

bool ToolArgumentWriter::Open(bool is_object, std::string* json) {
  if (open_.size() == kMaxArgumentDepth) return false;
  open_.push_back({is_object, value_schema_});
  *json += is_object ? '{' : '[';
  state_ = is_object ? State::kFirstKey : State::kFirstItem;
  if (!is_object) value_schema_ = Member(value_schema_, "items");
  return true;
}

bool ToolArgumentWriter::Close(bool is_object, std::string* json) {
  if (open_.back().is_object != is_object) return false;
  open_.pop_back();
  *json += is_object ? '}' : ']';
  state_ = open_.empty() ? State::kDone : State::kNext;
  return true;
}

void ToolArgumentWriter::WriteKey(const std::string& key, std::string* json) {
  AppendString(key, json);
  *json += ':';
  value_schema_ = Member(Member(open_.back().schema, "properties"), key.c_str());
}

bool ToolArgumentWriter::WriteBareKey(std::string* json) {
  const std::string_view bare = TrimBlanks(held_);
  if (bare.empty()) return false;
  const Json unquoted = Json::parse(bare, nullptr, /*allow_exceptions=*/false);
  WriteKey(unquoted.is_string() ? unquoted.get<std::string>() : std::string(bare), json);
  return true;
}

bool ToolArgumentWriter::WriteBareValue(std::string* json) {
  const std::string_view bare = TrimBlanks(held_);
  if (bare.empty()) return false;
  const Json literal = Json::parse(bare, nullptr, /*allow_exceptions=*/false);
  const bool wants_text = value_schema_ != nullptr && !literal.is_discarded() &&
                          !literal.is_string() && !AllowsValue(*value_schema_, literal) &&
                          Allows(*value_schema_, "string");
  if (literal.is_discarded() || wants_text) {
    AppendString(bare, json);
  } else {
    *json += literal.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  }
  return true;
}

bool ToolArgumentWriter::PushValue(char c, std::string* json) {
  if (c == '{' || c == '[') return Open(/*is_object=*/c == '{', json);
  if (c == ',' || IsBracket(c)) return false;
  held_ = c;
  state_ = State::kBareValue;
  return true;
}

bool ToolArgumentWriter::Push(char c, std::string* json) {
  switch (state_) {
    case State::kRoot:
      return c == '{' && Open(/*is_object=*/true, json);
    case State::kFirstKey:
      if (c == '}') return Close(/*is_object=*/true, json);
      [[fallthrough]];
    case State::kKey:
      if (IsBlank(c)) return true;
      held_.clear();
      state_ = State::kBareKey;
      [[fallthrough]];
    case State::kBareKey:
      if (IsBracket(c)) return false;
      if (c == ':') {
        state_ = State::kValue;
        return WriteBareKey(json);
      }
      held_ += c;
      return true;
    case State::kQuotedKey:
      held_ += c;
      return true;
    case State::kColon:
      if (c == ':') state_ = State::kValue;
      return c == ':' || IsBlank(c);
    case State::kFirstItem:
      if (c == ']') return Close(/*is_object=*/false, json);
      [[fallthrough]];
    case State::kValue:
      return IsBlank(c) || PushValue(c, json);
    case State::kBareValue:
      if (c == '{' || c == '[') return false;
      if (c != ',' && !IsBracket(c)) {
        held_ += c;
        return true;
      }
      if (!WriteBareValue(json)) return false;
      state_ = State::kNext;
      [[fallthrough]];
    case State::kNext:
      if (c == '}' || c == ']') return Close(/*is_object=*/c == '}', json);
      if (c != ',') return IsBlank(c);
      *json += c;
      state_ = open_.back().is_object ? State::kKey : State::kValue;
      if (!open_.back().is_object) value_schema_ = Member(open_.back().schema, "items");
      return true;
    case State::kQuotedValue:
      AppendEscaped(c, json);
      return true;
    case State::kDone:
      break;
  }
  return false;
}

bool ToolArgumentWriter::PushQuote(std::string* json) {
  switch (state_) {
    case State::kFirstKey:
    case State::kKey:
      held_.clear();
      state_ = State::kQuotedKey;
      return true;
    case State::kQuotedKey:
      WriteKey(held_, json);
      state_ = State::kColon;
      return true;
    case State::kFirstItem:
    case State::kValue:
      *json += '"';
      state_ = State::kQuotedValue;
      return true;
    case State::kQuotedValue:
      *json += '"';
      state_ = State::kNext;
      return true;
    default:
      return false;
  }
}

const Json* FindToolSchema(const Json& tools, std::string_view name) {
  if (!tools.is_array()) return nullptr;
  for (const Json& tool : tools) {
    const Json* function = Member(&tool, "function");
    const Json* declared = Member(function, "name");
    if (declared != nullptr && declared->is_string() &&
        declared->get_ref<const std::string&>() == name) {
      return Member(function, "parameters");
    }
  }
  return nullptr;
}

}  // namespace lapidary
