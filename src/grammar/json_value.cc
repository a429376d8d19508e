#include "grammar/json_value.h"

#include <unordered_map>

#include "grammar/decimal.h"
#include "grammar/text_cursor.h"
#include "text/utf8.h"

namespace lapidary::grammar {
namespace {

class Parser : private TextCursor {
 public:
  Parser(std::string_view text, std::string_view what) : TextCursor(text), what_(what) {}

  Result<JsonValue> Parse() {
    JsonValue value;
    RETURN_IF_ERROR(ParseValue(&value, 0));
    SkipBlanks();
    if (at_ != text_.size()) return Fail("text behind the value");
    return value;
  }

 private:
  Error Fail(std::string_view problem) const {
    return MakeError("{} is not JSON: {} at byte {}", what_, problem, at_);
  }
  void SkipBlanks() {
    while (Peek() == ' ' || Peek() == '\n' || Peek() == '\r' || Peek() == '\t') ++at_;
  }

  Status ParseValue(JsonValue* value, int depth) {
    if (depth > JsonValue::kMaxDepth) {
      return MakeError("{} nests deeper than {} levels", what_, JsonValue::kMaxDepth);
    }
    SkipBlanks();
    if (Take("{")) return ParseObject(value, depth);
    if (Take("[")) return ParseArray(value, depth);
    if (Peek() == '"') {
      value->type = JsonValue::Type::kString;
      return ParseString(&value->text);
    }
    if (Take("true")) {
      value->type = JsonValue::Type::kBool;
      value->boolean = true;
      return {};
    }
    if (Take("false")) {
      value->type = JsonValue::Type::kBool;
      return {};
    }
    if (Take("null")) return {};
    return ParseNumber(value);
  }

  Status ParseObject(JsonValue* value, int depth) {
    value->type = JsonValue::Type::kObject;
    std::unordered_map<std::string, size_t> places;
    SkipBlanks();
    if (Take("}")) return {};
    while (true) {
      SkipBlanks();
      if (Peek() != '"') return Fail("a key must be a string");
      std::string key;
      RETURN_IF_ERROR(ParseString(&key));
      SkipBlanks();
      if (!Take(":")) return Fail("a colon is missing");
      const auto [place, is_new] = places.try_emplace(key, value->members.size());
      if (is_new) value->members.emplace_back(std::move(key), JsonValue());
      JsonValue member;
      RETURN_IF_ERROR(ParseValue(&member, depth + 1));
      value->members[place->second].second = std::move(member);
      SkipBlanks();
      if (Take("}")) return {};
      if (!Take(",")) return Fail("a comma or brace is missing");
    }
  }

  Status ParseArray(JsonValue* value, int depth) {
    value->type = JsonValue::Type::kArray;
    SkipBlanks();
    if (Take("]")) return {};
    while (true) {
      RETURN_IF_ERROR(ParseValue(&value->items.emplace_back(), depth + 1));
      SkipBlanks();
      if (Take("]")) return {};
      if (!Take(",")) return Fail("a comma or bracket is missing");
    }
  }

  Status ParseNumber(JsonValue* value) {
    const size_t start = at_;
    const auto digits = [&] {
      const size_t first = at_;
      while (Peek() >= '0' && Peek() <= '9') ++at_;
      return at_ > first;
    };
    Take("-");
    if (!Take("0") && !digits()) return Fail("a value is missing");
    if (Take(".") && !digits()) return Fail("a digit is missing");
    if (Peek() == 'e' || Peek() == 'E') {
      ++at_;
      if (Peek() == '+' || Peek() == '-') ++at_;
      if (!digits()) return Fail("a digit is missing");
    }
    value->type = JsonValue::Type::kNumber;
    value->text = text_.substr(start, at_ - start);
    return {};
  }

  Status ParseString(std::string* text) {
    ++at_;
    while (true) {
      if (at_ >= text_.size()) return Fail("a string does not end");
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return {};
      }
      if (static_cast<uint8_t>(c) < 0x20) return Fail("a control character in a string");
      if (c == '\\') {
        ++at_;
        RETURN_IF_ERROR(ParseEscape(text));
        continue;
      }
      const Utf8Char character = ReadUtf8(text_.substr(at_));
      if (character.status != Utf8Status::kComplete) return Fail("malformed UTF-8");
      *text += text_.substr(at_, character.num_bytes);
      at_ += character.num_bytes;
    }
  }

  Status ParseEscape(std::string* text) {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    const char name = Peek();
    ++at_;
    if (const size_t place = kNames.find(name); name != '\0' && place != std::string_view::npos) {
      *text += kMeanings[place];
      return {};
    }
    if (name != 'u') return Fail("an unknown escape");
    uint32_t code_point = 0;
    if (!TakeHex4(&code_point)) return Fail("a \\u without four hexadecimal digits");
    if (code_point >= 0xD800 && code_point < 0xDC00 && Take("\\u")) {
      uint32_t low = 0;
      if (!TakeHex4(&low) || low < 0xDC00 || low > 0xDFFF) return Fail("half a surrogate pair");
      code_point = 0x10000 + ((code_point - 0xD800) << 10) + (low - 0xDC00);
    } else if (code_point >= 0xD800 && code_point < 0xE000) {
      code_point = 0xFFFD;
    }
    AppendCodePoint(code_point, text);
    return {};
  }

  bool TakeHex4(uint32_t* value) {
    for (int i = 0; i < 4; ++i, ++at_) {
      const char digit = Peek();
      const char lower = static_cast<char>(digit | 32);
      if (digit >= '0' && digit <= '9') {
        *value = *value * 16 + (digit - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        *value = *value * 16 + (lower - 'a' + 10);
      } else {
        return false;
      }
    }
    return true;
  }

  std::string_view what_;
};

}  // namespace

const JsonValue* JsonValue::Find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

Result<JsonValue> ParseJson(std::string_view text, std::string_view what) {
  return Parser(text, what).Parse();
}

bool Equal(const JsonValue& a, const JsonValue& b) {
  if (a.type != b.type) return false;
  switch (a.type) {
    case JsonValue::Type::kNull:
      return true;
    case JsonValue::Type::kBool:
      return a.boolean == b.boolean;
    case JsonValue::Type::kNumber:
      return Decimal::Parse(a.text) == Decimal::Parse(b.text);
    case JsonValue::Type::kString:
      return a.text == b.text;
    case JsonValue::Type::kArray:
      if (a.items.size() != b.items.size()) return false;
      for (size_t i = 0; i < a.items.size(); ++i) {
        if (!Equal(a.items[i], b.items[i])) return false;
      }
      return true;
    case JsonValue::Type::kObject:
      if (a.members.size() != b.members.size()) return false;
      for (const auto& [key, value] : a.members) {
        const JsonValue* other = b.Find(key);
        if (other == nullptr || !Equal(value, *other)) return false;
      }
      return true;
  }
  return false;
}

}  // namespace lapidary::grammar
