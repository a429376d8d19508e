#include "server/request_json.h"

#include <algorithm>
#include <cmath>

namespace lapidary {
namespace {

// A scan of the text alone, before any tree is built. `problem` names what is too large.
bool HasSaneShape(std::string_view text, const char** problem, size_t* num_values) {
  std::vector<int> num_commas;  // by open bracket
  *num_values = 1;
  bool in_string = false;
  for (size_t pos = 0; pos < text.size(); ++pos) {
    const char c = text[pos];
    if (in_string) {
      if (c == '\\') ++pos;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    *num_values += c == '{' || c == '[' || c == ',';
    if (c == '{' || c == '[') {
      // Arrays may be long: their count starts too low to reach the limit.
      num_commas.push_back(c == '{' ? 0 : INT32_MIN);
      *problem = "nested too deeply";
      if (num_commas.size() > kMaxJsonDepth) return false;
    }
    if ((c == '}' || c == ']') && !num_commas.empty()) num_commas.pop_back();
    if (c == ',' && !num_commas.empty() && ++num_commas.back() >= kMaxJsonKeys) {
      *problem = "an object with too many keys";
      return false;
    }
  }
  return true;
}

// "line 3, column 7" of the byte at which reading stopped.
std::string PlaceOf(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto num_lines = std::count(before.begin(), before.end(), '\n');
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return fmt::format("line {}, column {}", num_lines + 1, before.size() - line_begin + 1);
}

ApiError NotJson(std::string_view body) {
  size_t offset = body.size();
  try {
    [[maybe_unused]] const OrderedJson parsed = OrderedJson::parse(body);
  } catch (const OrderedJson::parse_error& error) {
    offset = error.byte > 0 ? error.byte - 1 : 0;
  } catch (const OrderedJson::exception&) {  // A number beyond all types: no place is known.
    return BadRequest("", "the body is not valid JSON");
  }
  return BadRequest("", "the body is not valid JSON: see {}", PlaceOf(body, offset));
}

}  // namespace

ApiStatus ParseRequestJson(std::string_view body, OrderedJson* json, ByteLease* memory) {
  // Of a value in a tree: itself, its key or text, and what a growing list keeps free.
  constexpr size_t kBytesPerValue = 96;
  const char* problem = nullptr;
  size_t num_values = 0;
  if (!HasSaneShape(body, &problem, &num_values)) {
    return BadRequest("", "the body is refused: {}", problem);
  }
  if (memory != nullptr && !memory->Grow(body.size() + num_values * kBytesPerValue)) {
    return OutOfMemory();
  }
  *json = OrderedJson::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json->is_discarded()) return NotJson(body);
  if (!json->is_object()) return BadRequest("", "the body must be a JSON object");
  return {};
}

RequestFields::RequestFields(const OrderedJson& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {}

const OrderedJson* RequestFields::Find(const std::string& name) {
  known_.insert(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

int64_t RequestFields::Int(const std::string& name, int64_t fallback, int64_t min, int64_t max) {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return fallback;
  // 2^63 and above would wrap; a float holds every integer up to 2^53.
  constexpr double kLargestWhole = 9007199254740992.0;
  bool fits = value->is_number_integer() &&
              (!value->is_number_unsigned() || value->get<uint64_t>() <= INT64_MAX);
  if (value->is_number_float()) {
    const double number = value->get<double>();
    fits = std::trunc(number) == number && std::abs(number) <= kLargestWhole;
  }
  if (!fits) {
    Fail(BadRequest(Name(name), "'{}' must be an integer", Name(name)));
    return fallback;
  }
  const int64_t number = value->get<int64_t>();
  if (number < min || number > max) {
    Fail(BadRequest(Name(name), "'{}' must be between {} and {}, got {}", Name(name), min, max,
                    number));
    return fallback;
  }
  return number;
}

double RequestFields::Number(const std::string& name, double fallback, double min, double max) {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    Fail(BadRequest(Name(name), "'{}' must be a number", Name(name)));
    return fallback;
  }
  const double number = value->get<double>();
  if (!(number >= min && number <= max)) {
    Fail(BadRequest(Name(name), "'{}' must be between {} and {}, got {}", Name(name), min, max,
                    number));
    return fallback;
  }
  return number;
}

bool RequestFields::Bool(const std::string& name, bool fallback) {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Fail(BadRequest(Name(name), "'{}' must be true or false", Name(name)));
  return fallback;
}

std::string RequestFields::String(const std::string& name, std::string fallback) {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  Fail(BadRequest(Name(name), "'{}' must be a string", Name(name)));
  return fallback;
}

std::vector<int32_t> RequestFields::Ids(const std::string& name) {
  std::vector<int32_t> ids;
  const OrderedJson* value = Find(name);
  if (value == nullptr) return ids;
  bool valid = value->is_array();
  if (valid) {
    for (const OrderedJson& id : *value) {
      valid = id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX;
      if (!valid) break;
      ids.push_back(id.get<int32_t>());
    }
  }
  if (!valid) Fail(BadRequest(Name(name), "'{}' must be a list of token ids", Name(name)));
  return ids;
}

void RequestFields::Refuse(const std::string& name, const OrderedJson& harmless) {
  const OrderedJson* value = Find(name);
  if (value != nullptr && *value != harmless) Fail(NotSupportedYet(Name(name)));
}

void RequestFields::Accept(std::initializer_list<const char*> names) {
  for (const char* name : names) known_.insert(name);
}

void RequestFields::Fail(ApiError error) {
  if (!status_) status_ = std::move(error);
}

std::string RequestFields::UnknownFields() const {
  constexpr size_t kMaxNames = 8;
  constexpr size_t kMaxNameBytes = 64;
  OrderedJson names = OrderedJson::array();
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    names.push_back(name.substr(0, kMaxNameBytes));
    if (names.size() == kMaxNames) break;
  }
  return names.empty() ? "" : DumpJson(names);
}

}  // namespace lapidary
