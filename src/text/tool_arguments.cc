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

class ArgumentParser {
 public:
  explicit ArgumentParser(const ToolCallText& call)
      : text_(call.text), quotes_(call.quotes), position_(call.object_begin) {
    while (next_quote_ < quotes_.size() && quotes_[next_quote_] < position_) ++next_quote_;
  }

  std::optional<Json> Run(const Json* schema) {
    auto object = ParseObject(schema, 0);
    if (!object) return std::nullopt;
    SkipBlanks();
    const bool at_end = position_ == text_.size() && next_quote_ == quotes_.size();
    return at_end ? std::move(object) : std::nullopt;
  }

 private:
  bool AtQuote() const { return next_quote_ < quotes_.size() && quotes_[next_quote_] == position_; }
  char Peek() const { return AtQuote() || position_ >= text_.size() ? '\0' : text_[position_]; }
  bool Take(char c) {
    SkipBlanks();
    if (AtQuote() || position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }
  void SkipBlanks() {
    while (!AtQuote() && position_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[position_]) != std::string_view::npos) {
      ++position_;
    }
  }

  // Text between two quote tokens; the first is next.
  std::optional<std::string> ParseQuoted() {
    if (next_quote_ + 1 >= quotes_.size()) return std::nullopt;
    const size_t end = quotes_[next_quote_ + 1];
    std::string quoted(text_.substr(position_, end - position_));
    position_ = end;
    next_quote_ += 2;
    return quoted;
  }

  // Text up to one of the stop characters; nothing if it is blank or a quote comes first.
  std::optional<std::string_view> ParseBare(std::string_view stops) {
    const size_t begin = position_;
    while (position_ < text_.size() && !AtQuote() &&
           stops.find(text_[position_]) == std::string_view::npos) {
      ++position_;
    }
    if (AtQuote() || position_ >= text_.size()) return std::nullopt;
    const std::string_view bare = TrimBlanks(text_.substr(begin, position_ - begin));
    if (bare.empty()) return std::nullopt;
    return bare;
  }

  std::optional<Json> ParseValue(const Json* schema, int depth) {
    SkipBlanks();
    if (AtQuote()) {
      auto quoted = ParseQuoted();
      return quoted ? std::optional<Json>(std::move(*quoted)) : std::nullopt;
    }
    if (Peek() == '{') return ParseObject(schema, depth);
    if (Peek() == '[') return ParseArray(schema, depth);
    const auto bare = ParseBare(",}]");
    if (!bare) return std::nullopt;
    Json literal = Json::parse(*bare, nullptr, /*allow_exceptions=*/false);
    if (literal.is_string()) return literal;
    const bool wants_text = schema != nullptr && !literal.is_discarded() &&
                            !AllowsValue(*schema, literal) && Allows(*schema, "string");
    if (literal.is_discarded() || wants_text) return Json(std::string(*bare));
    return literal;
  }

  std::optional<Json> ParseObject(const Json* schema, int depth) {
    if (depth >= kMaxArgumentDepth || !Take('{')) return std::nullopt;
    Json object = Json::object();
    if (Take('}')) return object;
    const Json* properties = Member(schema, "properties");
    do {
      SkipBlanks();
      std::string key;
      if (AtQuote()) {
        auto quoted = ParseQuoted();
        if (!quoted) return std::nullopt;
        key = std::move(*quoted);
      } else {
        const auto bare = ParseBare(":");
        if (!bare) return std::nullopt;
        const Json unquoted = Json::parse(*bare, nullptr, /*allow_exceptions=*/false);
        key = unquoted.is_string() ? unquoted.get<std::string>() : std::string(*bare);
      }
      if (!Take(':')) return std::nullopt;
      auto value = ParseValue(Member(properties, key.c_str()), depth + 1);
      if (!value) return std::nullopt;
      object[key] = std::move(*value);
    } while (Take(','));
    if (!Take('}')) return std::nullopt;
    return object;
  }

  std::optional<Json> ParseArray(const Json* schema, int depth) {
    if (depth >= kMaxArgumentDepth || !Take('[')) return std::nullopt;
    Json array = Json::array();
    if (Take(']')) return array;
    const Json* items = Member(schema, "items");
    do {
      auto value = ParseValue(items, depth + 1);
      if (!value) return std::nullopt;
      array.push_back(std::move(*value));
    } while (Take(','));
    if (!Take(']')) return std::nullopt;
    return array;
  }

  std::string_view text_;
  const std::vector<size_t>& quotes_;
  size_t position_;
  size_t next_quote_ = 0;
};

}  // namespace

std::string ToolCallText::Spelled() const {
  std::string spelled;
  size_t copied = 0;
  for (size_t quote : quotes) {
    spelled.append(text, copied, quote - copied);
    spelled += "<|\"|>";
    copied = quote;
  }
  spelled.append(text, copied);
  return spelled;
}

std::optional<Json> ParseToolArguments(const ToolCallText& call, const Json* schema) {
  return ArgumentParser(call).Run(schema);
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
