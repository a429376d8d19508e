// Prompts of a file: one's own, or conversations as ShareGPT's dumps have them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lapidary::bench {

struct FilePrompt {
  std::string text;
  std::string answer = {};             // what was answered then, if the file has it
  std::optional<int> output_len = {};  // what the file asks for
};

// A JSON object a line: {"prompt": TEXT, "output_tokens": COUNT}; the second may be left out.
Result<std::vector<FilePrompt>> ReadCustomPrompts(std::string_view text, std::string_view name);

// [{"conversations": [{"from": "human", "value": TEXT}, {"from": "gpt", "value": TEXT}, ...]},
// ...]: the first two turns of each. Conversations of fewer are left out.
Result<std::vector<FilePrompt>> ReadShareGptPrompts(std::string_view text, std::string_view name);

// `count` of them in an order that follows the seed; again from the beginning where they are fewer.
std::vector<FilePrompt> PickPrompts(std::vector<FilePrompt> prompts, size_t count, uint64_t seed);

}  // namespace lapidary::bench
