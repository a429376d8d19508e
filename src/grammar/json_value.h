// JSON as schemas need it: members in their order, numbers as they were written.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace lapidary::grammar {

struct JsonValue {
  enum class Type { kNull, kBool, kNumber, kString, kArray, kObject };
  // Enough for any schema people write; what walks a value may recurse.
  static constexpr int kMaxDepth = 200;

  Type type = Type::kNull;
  bool boolean = false;
  std::string text = {};  // a string's characters, or a number as it was written
  std::vector<JsonValue> items = {};
  std::vector<std::pair<std::string, JsonValue>> members =
      {};  // each key once: the last one counts

  // The member of an object, or null.
  const JsonValue* Find(std::string_view key) const;
  bool IsObject() const { return type == Type::kObject; }
  bool IsArray() const { return type == Type::kArray; }
  bool IsString() const { return type == Type::kString; }
  bool IsNumber() const { return type == Type::kNumber; }
  bool IsBool() const { return type == Type::kBool; }
};

// `what` names the text in errors ("the schema").
Result<JsonValue> ParseJson(std::string_view text, std::string_view what);

// JSON Schema's equality: objects regardless of order, 1 and 1.0 the same.
bool Equal(const JsonValue& a, const JsonValue& b);

}  // namespace lapidary::grammar
