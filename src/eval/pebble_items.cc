#include "eval/pebble_items.h"

#include <algorithm>
#include <fstream>

#include "base/json_fields.h"
#include "eval/json_lines.h"
#include "text/float_repr.h"
#include "text/unicode.h"

namespace lapidary {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kMaxWords = 1'000'000;
constexpr std::string_view kQuote = "<|\"|>";

std::string Lowered(std::string_view text) {
  std::string lowered;
  for (size_t at = 0; at < text.size();) {
    const CodePoint character = DecodeAt(text, at);
    AppendCased(Case::kLower, character.value, &lowered);
    at += character.num_bytes;
  }
  return lowered;
}

// Arguments of a call in Gemma's notation, as the chat template writes them.
void AppendMembers(const OrderedJson& object, std::string* out);

void AppendValue(const OrderedJson& value, std::string* out) {
  if (value.is_string()) {
    *out += fmt::format("{}{}{}", kQuote, value.get_ref<const std::string&>(), kQuote);
  } else if (value.is_object()) {
    *out += '{';
    AppendMembers(value, out);
    *out += '}';
  } else if (value.is_array()) {
    *out += '[';
    for (size_t idx = 0; idx < value.size(); ++idx) {
      if (idx > 0) *out += ',';
      AppendValue(value[idx], out);
    }
    *out += ']';
  } else if (value.is_number_float()) {
    *out += FloatRepr(value.get<double>());
  } else {
    *out += value.dump();  // null, true, false and whole numbers are spelled as in JSON.
  }
}

void AppendMembers(const OrderedJson& object, std::string* out) {
  std::vector<std::pair<std::string, std::string>> members;  // lowered name, spelled member
  for (const auto& [name, value] : object.items()) {
    std::string member = name + ":";
    AppendValue(value, &member);
    members.emplace_back(Lowered(name), std::move(member));
  }
  std::stable_sort(members.begin(), members.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t idx = 0; idx < members.size(); ++idx) {
    if (idx > 0) *out += ',';
    *out += members[idx].second;
  }
}

Result<std::vector<std::string>> SpellCalls(const OrderedJson& tool_calls, std::string_view where) {
  std::vector<std::string> calls;
  for (const OrderedJson& call : tool_calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object() ||
        !call["function"].contains("name") || !call["function"]["name"].is_string() ||
        !call["function"].contains("arguments") || !call["function"]["arguments"].is_object()) {
      return MakeError("{}: a tool call needs a function with a name and arguments", where);
    }
    const OrderedJson& function = call["function"];
    std::string text = fmt::format("call:{}{{", function["name"].get_ref<const std::string&>());
    AppendMembers(function["arguments"], &text);
    calls.push_back(text + "}");
  }
  return calls;
}

Result<PebbleItem::Check> ParseCheck(const std::string& kind, std::string_view where) {
  using Check = PebbleItem::Check;
  constexpr std::pair<std::string_view, Check> kNames[] = {
      {"exact", Check::kExact}, {"one_of", Check::kOneOf},       {"min_words", Check::kMinWords},
      {"json", Check::kJson},   {"tool_call", Check::kToolCall}, {"no_call", Check::kNoCall}};
  for (const auto& [name, check] : kNames) {
    if (kind == name) return check;
  }
  return MakeError("{}: check.kind '{}' is not known", where, ShortUtf8(kind, 40));
}

Result<PebbleAnswer> ParseAnswer(std::string_view line, const std::string& where) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(line, where));
  JsonFields fields(json, where);
  PebbleAnswer answer;
  answer.id = fields.StringOr("id", "");
  answer.is_right = fields.BoolOr("right", false);
  answer.text = fields.StringOr("text", "");
  RETURN_IF_ERROR(fields.status());
  const auto ids = json.find("ids");
  if (answer.id.empty() || ids == json.end() || !ids->is_array()) {
    return MakeError("{}: an answer needs id and ids", where);
  }
  for (const Json& id : *ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return MakeError("{}: ids have to be token ids", where);
    }
    answer.ids.push_back(id.get<int32_t>());
  }
  return answer;
}

}  // namespace

Result<PebbleItem> PebbleItem::Parse(std::string_view line, std::string_view where) {
  ASSIGN_OR_RETURN(const Json checked, ParseJson(line, where));
  JsonFields fields(checked, std::string(where));
  PebbleItem item;
  item.id = fields.StringOr("id", "");
  item.task = fields.StringOr("task", "");
  item.bin = fields.StringOr("bin", "");
  item.enable_thinking = fields.BoolOr("enable_thinking", false);
  item.stop = static_cast<int32_t>(fields.Int("stop", {}));
  const Json* check = fields.OptionalObject("check");
  const Json* reference = fields.OptionalObject("reference");
  if (item.id.empty() || item.task.empty() || check == nullptr || reference == nullptr) {
    fields.Fail("an item needs id, task, check and reference");
  }
  RETURN_IF_ERROR(fields.status());

  JsonFields check_fields(*check, fmt::format("{}: check", where));
  ASSIGN_OR_RETURN(item.check, ParseCheck(check_fields.StringOr("kind", ""), where));
  if (item.check == Check::kOneOf) {
    auto answers = check_fields.OptionalStrings("answers");
    if (!answers) check_fields.Fail("one_of needs answers");
    item.answers = std::move(answers).value_or(std::vector<std::string>());
  }
  if (item.check == Check::kMinWords) {
    item.min_words = check_fields.Int("words", {.min = 0, .max = kMaxWords});
  }
  RETURN_IF_ERROR(check_fields.status());
  JsonFields reference_fields(*reference, fmt::format("{}: reference", where));
  item.reference_content = reference_fields.StringOr("content", "");
  if ((item.check == Check::kExact || item.check == Check::kJson) &&
      !reference->contains("content")) {
    reference_fields.Fail("content is missing");
  }
  RETURN_IF_ERROR(reference_fields.status());

  // What the template sees keeps the order of its members.
  const OrderedJson ordered = OrderedJson::parse(line);
  if (!ordered.contains("messages") || !ordered["messages"].is_array()) {
    return MakeError("{}: messages has to be a list", where);
  }
  item.messages = ordered["messages"];
  if (ordered.contains("tools") && !ordered["tools"].is_null()) item.tools = ordered["tools"];
  const OrderedJson& ordered_reference = ordered["reference"];
  if (item.check == Check::kToolCall && ordered_reference.contains("tool_calls")) {
    ASSIGN_OR_RETURN(item.wanted_calls, SpellCalls(ordered_reference["tool_calls"], where));
  }
  return item;
}

Result<std::vector<PebbleItem>> LoadPebbleItems(const std::filesystem::path& path) {
  return LoadItems<PebbleItem>(path);
}

Result<PebbleAnswers> LoadPebbleAnswers(const std::filesystem::path& path) {
  PebbleAnswers answers;
  const auto take = [&](std::string_view line, const std::string& where) -> Status {
    ASSIGN_OR_RETURN(PebbleAnswer answer, ParseAnswer(line, where));
    answers[answer.id] = std::move(answer);
    return {};
  };
  RETURN_IF_ERROR(ForEachLine(path, take));
  return answers;
}

Status SavePebbleAnswers(const std::vector<PebbleAnswer>& answers,
                         const std::filesystem::path& path) {
  std::ofstream file(path);
  for (const PebbleAnswer& answer : answers) {
    const OrderedJson line = {
        {"id", answer.id}, {"right", answer.is_right}, {"text", answer.text}, {"ids", answer.ids}};
    file << line.dump() << "\n";
  }
  file.flush();
  if (!file) return MakeError("{} cannot be written", path.string());
  return {};
}

std::optional<std::filesystem::path> FindPebbleAnswers(const std::filesystem::path& model_dir,
                                                       std::string_view set) {
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::canonical(model_dir, error);
  if (error) return std::nullopt;
  const std::string name = fmt::format("{}-{}.jsonl", directory.filename().string(), set);
  for (const auto& path : {directory.parent_path() / name, directory / name}) {
    if (std::filesystem::exists(path, error)) return path;
  }
  return std::nullopt;
}

}  // namespace lapidary
