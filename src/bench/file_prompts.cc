#include "bench/file_prompts.h"

#include <algorithm>
#include <random>

#include "base/json_fields.h"

namespace lapidary::bench {
namespace {

// The text under `key`; null if there is none.
const std::string* TextIn(const Json& json, const char* key) {
  if (!json.is_object() || !json.contains(key) || !json[key].is_string()) return nullptr;
  return &json[key].get_ref<const std::string&>();
}

Result<std::vector<FilePrompt>> SomeOf(std::vector<FilePrompt> prompts, std::string_view name) {
  if (prompts.empty()) return MakeError("{}: there are no prompts in it", name);
  return prompts;
}

}  // namespace

Result<std::vector<FilePrompt>> ReadCustomPrompts(std::string_view text, std::string_view name) {
  std::vector<FilePrompt> prompts;
  for (size_t line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = fmt::format("{}, line {}", name, line_number);
    ASSIGN_OR_RETURN(const Json json, ParseJson(line, place));
    const std::string* prompt = TextIn(json, "prompt");
    if (prompt == nullptr || prompt->empty()) {
      return MakeError("{}: must be an object with a text \"prompt\"", place);
    }
    FilePrompt& added = prompts.emplace_back(FilePrompt{*prompt});
    if (!json.contains("output_tokens")) continue;
    const Json& count = json["output_tokens"];
    if (!count.is_number_unsigned() || count.get<uint64_t>() == 0 ||
        count.get<uint64_t>() > INT32_MAX) {
      return MakeError("{}: \"output_tokens\" must be a count of tokens", place);
    }
    added.output_len = count.get<int>();
  }
  return SomeOf(std::move(prompts), name);
}

Result<std::vector<FilePrompt>> ReadShareGptPrompts(std::string_view text, std::string_view name) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, name));
  if (!json.is_array()) return MakeError("{}: must be a list of conversations", name);
  std::vector<FilePrompt> prompts;
  for (const Json& item : json) {
    if (!item.is_object() || !item.contains("conversations")) continue;
    const Json& turns = item["conversations"];
    if (!turns.is_array() || turns.size() < 2) continue;
    const std::string* prompt = TextIn(turns[0], "value");
    const std::string* answer = TextIn(turns[1], "value");
    if (prompt == nullptr || answer == nullptr || prompt->empty() || answer->empty()) continue;
    prompts.push_back({*prompt, *answer});
  }
  return SomeOf(std::move(prompts), name);
}

std::vector<FilePrompt> PickPrompts(std::vector<FilePrompt> prompts, size_t count, uint64_t seed) {
  // std::shuffle differs from library to library.
  std::mt19937_64 generator(seed);
  for (size_t left = prompts.size(); left > 1; --left) {
    std::swap(prompts[left - 1], prompts[generator() % left]);
  }
  const size_t num_read = prompts.size();
  for (size_t idx = num_read; idx < count; ++idx) prompts.push_back(prompts[idx % num_read]);
  prompts.resize(count);
  return prompts;
}

}  // namespace lapidary::bench
