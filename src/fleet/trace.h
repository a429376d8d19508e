// What users ask of a fleet: conversations that begin at some time and go on turn by turn.
//
// A file has a JSON object a line, as tools/fleet.py writes them:
//
//   {"at": 1.5, "system": 3, "system_tokens": 1200,
//    "turns": [{"tokens": 80, "answer": 200, "think": 4.0}, ...]}
//
// Conversations of one `system` share those tokens. A turn adds `tokens` to the conversation and is
// answered by `answer` tokens; `think` seconds later the next one comes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lapidary::fleet {

struct Turn {
  int32_t num_tokens = 0;
  int32_t num_answer_tokens = 0;
  double think_s = 0.0;
};

struct Conversation {
  double at_s = 0.0;
  int32_t system = 0;
  int32_t num_system_tokens = 0;
  std::vector<Turn> turns;

  int64_t num_tokens() const;  // when it is over
};

// In order of their beginnings.
Result<std::vector<Conversation>> ParseTrace(std::string_view text, std::string_view name);
Result<std::vector<Conversation>> ReadTrace(const std::filesystem::path& path);

// Tokens without a meaning: of a system prompt, and of a turn of a conversation.
std::vector<int32_t> SystemTokens(const Conversation& conversation, int32_t vocab_size);
std::vector<int32_t> TurnTokens(size_t conversation_idx, size_t turn_idx, int32_t num_tokens,
                                int32_t vocab_size);

}  // namespace lapidary::fleet
