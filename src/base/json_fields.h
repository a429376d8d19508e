// Reads the fields of an untrusted JSON object, with checked types and ranges.
//
// The first problem is kept and later reads return harmless values, so a parser reads as a plain
// list of fields and asks status() once at the end:
//
//   JsonFields fields(object, "config.json: text_config");
//   config.hidden_size = fields.Int("hidden_size", {.min = 1, .max = 65536});
//   config.softcap = fields.NumberOr("final_logit_softcapping", 0.0, {.min = 0, .max = 1e6});
//   RETURN_IF_ERROR(fields.status());
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace lapidary {

// Sorted keys: inserting into nlohmann::ordered_json is linear, so a hostile file could make it
// quadratic.
using Json = nlohmann::json;

struct JsonRules {
  int max_depth = 200;        // nested arrays and objects
  bool unique_names = false;  // refuse an object that names a member twice; else the last one wins
};

// Parses text to JSON in time linear in its length; refuses trailing garbage and invalid UTF-8.
Result<Json> ParseJson(std::string_view text, std::string_view name, JsonRules rules = {});

// The first `max_bytes` of a text from outside, cut between characters and marked, for messages.
std::string ShortUtf8(std::string_view text, size_t max_bytes);

struct IntRange {
  int64_t min = 0;
  int64_t max = INT32_MAX;
};

struct NumberRange {
  double min = -1e300;
  double max = 1e300;
};

class JsonFields {
 public:
  // `where` begins every message; `object` must outlive the reader.
  JsonFields(const Json& object, std::string where);

  // A missing key is an error for the plain form; null counts as missing throughout.
  int64_t Int(const char* key, IntRange range);
  int64_t IntOr(const char* key, int64_t fallback, IntRange range);
  double Number(const char* key, NumberRange range);
  double NumberOr(const char* key, double fallback, NumberRange range);
  bool BoolOr(const char* key, bool fallback);
  std::string StringOr(const char* key, std::string fallback);
  std::optional<std::vector<std::string>> OptionalStrings(const char* key);
  // nullptr when the key is missing, null or no object (the last is an error).
  const Json* OptionalObject(const char* key);

  // Records a problem found by the caller; the first one wins.
  void Fail(std::string message);

  const Status& status() const { return status_; }

 private:
  const Json* Find(const char* key) const;
  const Json* FindRequired(const char* key);
  int64_t CheckedInt(const char* key, const Json& value, IntRange range);
  double CheckedNumber(const char* key, const Json& value, NumberRange range);

  const Json& object_;
  std::string where_;
  Status status_;
};

}  // namespace lapidary
