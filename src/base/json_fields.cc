#include "base/json_fields.h"

#include <cmath>

namespace lapidary {
namespace {

// "[json.exception.parse_error.101] parse error at line 1, column 33: syntax error ... - invalid
// literal; last read: '...'": the reason alone, since the rest repeats the position and the file's
// own bytes.
std::string Explanation(std::string_view message) {
  const size_t reason = message.find(": ");
  if (reason != std::string_view::npos) message.remove_prefix(reason + 2);
  return std::string(message.substr(0, message.find("; last read")));
}

constexpr size_t kMaxMessageBytes = 400;

// Builds the value while the text is read, so that a rule broken anywhere ends the work there.
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit JsonBuilder(JsonRules rules) : rules_(rules) {}

  bool null() override { return Put(nullptr) != nullptr; }
  bool boolean(bool value) override { return Put(value) != nullptr; }
  bool number_integer(int64_t value) override { return Put(value) != nullptr; }
  bool number_unsigned(uint64_t value) override { return Put(value) != nullptr; }
  bool number_float(double value, const std::string&) override { return Put(value) != nullptr; }
  bool string(std::string& value) override { return Put(std::move(value)) != nullptr; }
  bool binary(Json::binary_t&) override { return false; }  // Not in text.

  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& name) override {
    auto [it, is_new] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    if (!is_new && rules_.unique_names) {
      problem_ = fmt::format("'{}' is there twice", ShortUtf8(name, 120));
      return false;
    }
    member_ = &it->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    problem_ = fmt::format("not valid JSON at byte {} ({})", position, Explanation(error.what()));
    return false;
  }

  Json& root() { return root_; }
  const std::string& problem() const { return problem_; }

 private:
  // The value's place: the root, the end of the open array, or the member just named.
  Json* Put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      return &open_.back()->get_ref<Json::array_t&>().emplace_back(std::move(value));
    }
    *member_ = std::move(value);
    return member_;
  }
  bool Open(Json value) {
    if (static_cast<int>(open_.size()) == rules_.max_depth) {
      problem_ = fmt::format("JSON nested deeper than {} levels", rules_.max_depth);
      return false;
    }
    open_.push_back(Put(std::move(value)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const JsonRules rules_;
  Json root_;
  std::vector<Json*> open_;  // the arrays and objects being read, outermost first
  Json* member_ = nullptr;
  std::string problem_;
};

}  // namespace

std::string ShortUtf8(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

Result<Json> ParseJson(std::string_view text, std::string_view name, JsonRules rules) {
  JsonBuilder builder(rules);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return MakeError("{}: {}", name, builder.problem());
  }
  return std::move(builder.root());
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

const Json* JsonFields::FindRequired(const char* key) {
  const Json* value = Find(key);
  if (value == nullptr) Fail(fmt::format("{} is missing", key));
  return value;
}

void JsonFields::Fail(std::string message) {
  if (status_.ok()) {
    status_ = MakeError("{}: {}", where_, ShortUtf8(message, kMaxMessageBytes));
  }
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
  const Json* value = FindRequired(key);
  return value == nullptr ? range.min : CheckedInt(key, *value, range);
}

int64_t JsonFields::IntOr(const char* key, int64_t fallback, IntRange range) {
  const Json* value = Find(key);
  return value == nullptr ? fallback : CheckedInt(key, *value, range);
}

double JsonFields::Number(const char* key, NumberRange range) {
  const Json* value = FindRequired(key);
  return value == nullptr ? range.min : CheckedNumber(key, *value, range);
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
