#include "base/json_fields.h"

#include <cmath>

namespace lapidary {
namespace {

constexpr int kMaxJsonDepth = 200;

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view name) {
  bool too_deep = false;
  const auto limit_depth = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxJsonDepth;
    return !too_deep;
  };
  try {
    Json json = Json::parse(text.begin(), text.end(), limit_depth);
    if (too_deep) return MakeError("{}: JSON nested deeper than {} levels", name, kMaxJsonDepth);
    return json;
  } catch (const Json::exception& error) {
    return MakeError("{}: not valid JSON ({})", name, error.what());
  }
}

JsonFields::JsonFields(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) Fail("expected a JSON object");
}

const Json* JsonFields::Find(const char* key) const {
  if (!object_.is_object()) return nullptr;
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void JsonFields::Fail(std::string message) {
  if (status_.ok()) status_ = MakeError("{}: {}", where_, message);
}

int64_t JsonFields::CheckedInt(const char* key, const Json& value, IntRange range) {
  // Some writers store counts as floats (512.0): accepted when integral.
  int64_t number = range.min;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    Fail(fmt::format("{} is out of range [{}, {}]", key, range.min, range.max));
    return range.min;
  }
  if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float() && std::abs(value.get<double>()) < 9e15 &&
             std::floor(value.get<double>()) == value.get<double>()) {
    number = static_cast<int64_t>(value.get<double>());
  } else {
    Fail(fmt::format("{} must be an integer", key));
    return range.min;
  }
  if (number < range.min || number > range.max) {
    Fail(fmt::format("{} = {} is out of range [{}, {}]", key, number, range.min, range.max));
    return range.min;
  }
  return number;
}

double JsonFields::CheckedNumber(const char* key, const Json& value, NumberRange range) {
  if (!value.is_number()) {
    Fail(fmt::format("{} must be a number", key));
    return range.min;
  }
  const double number = value.get<double>();
  if (!(number >= range.min && number <= range.max)) {
    Fail(fmt::format("{} = {} is out of range [{}, {}]", key, number, range.min, range.max));
    return range.min;
  }
  return number;
}

int64_t JsonFields::Int(const char* key, IntRange range) {
  const Json* value = Find(key);
  if (value == nullptr) {
    Fail(fmt::format("{} is missing", key));
    return range.min;
  }
  return CheckedInt(key, *value, range);
}

int64_t JsonFields::IntOr(const char* key, int64_t fallback, IntRange range) {
  const Json* value = Find(key);
  return value == nullptr ? fallback : CheckedInt(key, *value, range);
}

double JsonFields::Number(const char* key, NumberRange range) {
  const Json* value = Find(key);
  if (value == nullptr) {
    Fail(fmt::format("{} is missing", key));
    return range.min;
  }
  return CheckedNumber(key, *value, range);
}

double JsonFields::NumberOr(const char* key, double fallback, NumberRange range) {
  const Json* value = Find(key);
  return value == nullptr ? fallback : CheckedNumber(key, *value, range);
}

bool JsonFields::BoolOr(const char* key, bool fallback) {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Fail(fmt::format("{} must be true or false", key));
    return fallback;
  }
  return value->get<bool>();
}

std::string JsonFields::StringOr(const char* key, std::string fallback) {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    Fail(fmt::format("{} must be a string", key));
    return fallback;
  }
  return value->get<std::string>();
}

std::optional<std::vector<std::string>> JsonFields::OptionalStrings(const char* key) {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> strings;
  if (value->is_array()) {
    for (const Json& item : *value) {
      if (item.is_string()) strings.push_back(item.get<std::string>());
    }
  }
  if (!value->is_array() || strings.size() != value->size()) {
    Fail(fmt::format("{} must be a list of strings", key));
  }
  return strings;
}

const Json* JsonFields::OptionalObject(const char* key) {
  const Json* value = Find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_object()) {
    Fail(fmt::format("{} must be an object", key));
    return nullptr;
  }
  return value;
}

}  // namespace lapidary
