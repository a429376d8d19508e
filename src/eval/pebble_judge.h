// Whether an answer to an item of the Pebble set is right: tools/pebble/evalset.py's rules,
// exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/pebble_items.h"

namespace lapidary {

// Generated text with its control tokens spelled out, taken apart.
struct JudgedText {
  std::string thought;  // empty: none
  std::string content;
  std::vector<std::string> calls;  // what stood between the tokens of each
  std::optional<int32_t> stop;     // the token that ended it
  bool is_broken = false;          // something is left open, or control tokens are out of place
};
JudgedText TakeApart(std::string_view text);

// `text` begins with what the prompt opened of the answer (a thought after a tool's result).
bool IsRightAnswer(const PebbleItem& item, std::string_view text);

}  // namespace lapidary
