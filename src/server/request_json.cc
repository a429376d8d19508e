#include "server/request_json.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace lapidary {
namespace {

bool HoldsTokenIds(std::string_view key) {
  return key == "prompt" || key == "tokens" || key == "token_ids";
}

// What a text holds by a scan of it alone, before any tree is built.
struct JsonShape {
  std::string problem = {};  // what is too large
  size_t num_values = 1;     // but for the following
  size_t num_ids = 0;        // numbers in lists under a key that HoldsTokenIds
};

JsonShape ScanJson(std::string_view text) {
  JsonShape shape;
  std::vector<int> num_commas;  // by open bracket
  size_t string_begin = 0;
  std::string_view last_string;  // of those directly in the object
  bool has_ids = false;          // of the value directly in the object
  bool in_string = false;
  for (size_t pos = 0; pos < text.size(); ++pos) {
    const char c = text[pos];
    if (in_string) {
      if (c == '\\') ++pos;
      if (c == '"') {
        in_string = false;
        if (num_commas.size() == 1) last_string = text.substr(string_begin, pos - string_begin);
      }
      continue;
    }
    if (c == '"') {
      in_string = true;
      string_begin = pos + 1;
    }
    if (num_commas.size() == 1 && (c == ':' || c == ',')) {
      has_ids = c == ':' && HoldsTokenIds(last_string);
    }
    if (c == '{' || c == '[' || c == ',') {
      const size_t next = text.find_first_not_of(" \t\r\n", pos + 1);
      const bool is_number =
          next != std::string_view::npos && text[next] >= '0' && text[next] <= '9';
      ++(has_ids && is_number ? shape.num_ids : shape.num_values);
    }
    if (c == '{' || c == '[') {
      // Arrays may be long: their count starts too low to reach the limit.
      num_commas.push_back(c == '{' ? 0 : INT32_MIN);
      if (num_commas.size() > kMaxJsonDepth) {
        shape.problem = fmt::format("nested deeper than {} levels", kMaxJsonDepth);
        return shape;
      }
    }
    if ((c == '}' || c == ']') && !num_commas.empty()) num_commas.pop_back();
    if (c == ',' && !num_commas.empty() && ++num_commas.back() >= kMaxJsonKeys) {
      shape.problem = fmt::format("an object with more than {} keys", kMaxJsonKeys);
      return shape;
    }
  }
  return shape;
}

// Also of a float that is whole.
std::optional<int32_t> AsTokenId(const OrderedJson& json) {
  if (!json.is_number()) return std::nullopt;
  const double number = json.get<double>();
  const bool fits = number >= 0 && number <= INT32_MAX && std::trunc(number) == number;
  return fits ? std::optional(static_cast<int32_t>(number)) : std::nullopt;
}

// As OrderedJson::parse without exceptions, with lists of token ids as binary values. They never
// are a tree.
OrderedJson ParseWithIds(std::string_view body) {
  using Event = OrderedJson::parse_event_t;
  bool has_ids = false;   // of the value directly in the object
  bool is_mixed = false;  // lists among ids
  std::vector<int32_t> ids;
  const auto on_event = [&](int depth, Event event, OrderedJson& value) {
    if (depth == 1 && event == Event::key) {
      has_ids = HoldsTokenIds(value.get_ref<const std::string&>());
    }
    if (!has_ids) return true;
    const std::optional<int32_t> id =
        event == Event::value && depth >= 2 ? AsTokenId(value) : std::nullopt;
    if (id) ids.push_back(*id);
    is_mixed |= event == Event::array_start && !ids.empty();
    if (event == Event::array_end && !ids.empty()) {
      std::vector<uint8_t> bytes(ids.size() * sizeof(int32_t));
      std::memcpy(bytes.data(), ids.data(), bytes.size());
      // Ids beside something else make no list that anybody takes.
      value = value.empty() && !is_mixed ? OrderedJson::binary(std::move(bytes))
                                         : OrderedJson::array({nullptr});
      ids.clear();
    }
    return !id;
  };
  return OrderedJson::parse(body, on_event, /*allow_exceptions=*/false);
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
  constexpr size_t kBytesPerId = 16;  // Twice in a list, once of them in one that grows.
  const JsonShape shape = ScanJson(body);
  if (!shape.problem.empty()) {
    return BadRequest("", "the body is refused: {}", shape.problem);
  }
  const size_t tree_bytes = shape.num_values * kBytesPerValue + shape.num_ids * kBytesPerId;
  const size_t num_bytes = body.size() + tree_bytes;
  if (memory != nullptr && !memory->Grow(num_bytes)) return memory->Refusal(num_bytes);
  *json = shape.num_ids > 0 ? ParseWithIds(body)
                            : OrderedJson::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json->is_discarded()) return NotJson(body);
  if (!json->is_object()) return BadRequest("", "the body must be a JSON object");
  return {};
}

std::optional<std::vector<int32_t>> ReadTokenIds(const OrderedJson& json) {
  std::vector<int32_t> ids;
  if (json.is_binary()) {
    ids.resize(json.get_binary().size() / sizeof(int32_t));
    std::memcpy(ids.data(), json.get_binary().data(), ids.size() * sizeof(int32_t));
    return ids;
  }
  if (!json.is_array()) return std::nullopt;
  for (const OrderedJson& value : json) {
    const std::optional<int32_t> id = AsTokenId(value);
    if (!id) return std::nullopt;
    ids.push_back(*id);
  }
  return ids;
}

std::string StringOr(const OrderedJson& object, const char* name, std::string fallback) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : fallback;
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
  const OrderedJson* value = Find(name);
  if (value == nullptr) return {};
  std::optional<std::vector<int32_t>> ids = ReadTokenIds(*value);
  if (!ids) Fail(BadRequest(Name(name), "'{}' must be a list of token ids", Name(name)));
  return std::move(ids).value_or(std::vector<int32_t>());
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
