#include "eval/pebble_judge.h"

#include <algorithm>
#include <utility>

#include "base/json_fields.h"
#include "text/unicode.h"

namespace lapidary {
namespace {

constexpr std::pair<std::string_view, int32_t> kStopTokens[] = {
    {"<turn|>", 106}, {"<|tool_response>", 50}, {"<eos>", 1}};
constexpr std::string_view kChannelOpen = "<|channel>";
constexpr std::string_view kChannelClose = "<channel|>";
constexpr std::string_view kCallOpen = "<|tool_call>";
constexpr std::string_view kCallClose = "<tool_call|>";
constexpr std::string_view kThoughtName = "thought\n";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// str.strip.
std::string_view Stripped(std::string_view text) {
  text.remove_prefix(SkipSpaces(text));
  return text.substr(0, EndWithoutSpaces(text));
}

// len(str.split()).
int64_t CountWords(std::string_view text) {
  int64_t num_words = 0;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const CodePoint character = DecodeAt(text, at);
    const bool is_space = IsSpace(character.value);
    num_words += !is_space && !in_word;
    in_word = !is_space;
    at += character.num_bytes;
  }
  return num_words;
}

struct Parts {
  std::string_view before;
  std::string_view after;
  bool found = false;
};
// str.partition.
Parts Partition(std::string_view text, std::string_view separator) {
  const size_t at = text.find(separator);
  if (at == std::string_view::npos) return {text, {}, false};
  return {text.substr(0, at), text.substr(at + separator.size()), true};
}

bool IsNumber(const Json& value) { return value.is_number() || value.is_boolean(); }
Json AsNumber(const Json& value) {
  return value.is_boolean() ? Json(value.get<bool>() ? 1 : 0) : value;
}

// Python's ==: true is 1, and numbers are equal by value.
bool EqualValues(const Json& left, const Json& right) {
  if (IsNumber(left) && IsNumber(right)) return AsNumber(left) == AsNumber(right);
  if (left.type() != right.type()) return false;
  if (left.is_array()) {
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), EqualValues);
  }
  if (left.is_object()) {
    return left.size() == right.size() &&
           std::equal(left.items().begin(), left.items().end(), right.items().begin(),
                      [](const auto& a, const auto& b) {
                        return a.key() == b.key() && EqualValues(a.value(), b.value());
                      });
  }
  return left == right;
}

// Both parse and are equal. Python also takes NaN, infinities and half surrogates, which equal
// nothing a reference holds; and no byte order mark, which our parser skips.
bool IsSameJson(std::string_view content, std::string_view reference) {
  if (content.starts_with(kByteOrderMark)) return false;
  const auto value = ParseJson(content, "answer");
  const auto wanted = ParseJson(reference, "reference");
  return value.ok() && wanted.ok() && EqualValues(*value, *wanted);
}

}  // namespace

JudgedText TakeApart(std::string_view text) {
  JudgedText parts;
  for (const auto& [token, id] : kStopTokens) {
    if (!text.ends_with(token)) continue;
    parts.stop = id;
    text.remove_suffix(token.size());
    break;
  }
  if (text.starts_with(kChannelOpen)) {
    const Parts halves = Partition(text.substr(kChannelOpen.size()), kChannelClose);
    std::string_view thought = halves.before;
    if (thought.starts_with(kThoughtName)) thought.remove_prefix(kThoughtName.size());
    parts.thought = Stripped(thought);
    parts.is_broken = !halves.found;
    text = halves.after;
  }
  std::string rest(text);
  while (true) {
    const Parts call = Partition(rest, kCallOpen);
    if (!call.found) break;
    const Parts inner = Partition(call.after, kCallClose);
    parts.calls.emplace_back(inner.before);
    parts.is_broken |= !inner.found;
    rest = std::string(call.before) + std::string(inner.after);
  }
  parts.content = Stripped(rest);
  parts.is_broken |= parts.content.find("<|") != std::string::npos ||
                     parts.content.find("|>") != std::string::npos;
  return parts;
}

bool IsRightAnswer(const PebbleItem& item, std::string_view text) {
  using Check = PebbleItem::Check;
  const JudgedText got = TakeApart(text);
  if (got.is_broken || got.stop != item.stop || got.thought.empty() == item.enable_thinking) {
    return false;
  }
  if (item.check == Check::kToolCall) return got.calls == item.wanted_calls;
  if (!got.calls.empty()) return false;
  switch (item.check) {
    case Check::kJson:
      return IsSameJson(got.content, item.reference_content);
    case Check::kOneOf:
      return std::find(item.answers.begin(), item.answers.end(), got.content) != item.answers.end();
    case Check::kMinWords:
      return CountWords(got.content) >= item.min_words;
    case Check::kNoCall:
      return !got.content.empty();
    case Check::kExact:
    case Check::kToolCall:  // handled above
      break;
  }
  return got.content == Stripped(item.reference_content);
}

}  // namespace lapidary
