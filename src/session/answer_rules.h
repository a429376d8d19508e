// Rules on an answer's tokens beside its form: a least number, and words to avoid. Both join the
// constraint on the answer, so they hold wherever constraints do: drafted or not, under a grammar
// or not, on every device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "front/text_model.h"
#include "grammar/constraint.h"

namespace lapidary {

inline constexpr size_t kMaxBadWords = 1000;
inline constexpr size_t kMaxBadWordBytes = 1024;

struct AnswerRules {
  int32_t min_tokens = 0;  // before them no stop token comes
  // The tokens that spell one, as it stands or behind a space, never follow each other. The same
  // letters in other tokens may come: a word within a longer one is no such word.
  std::vector<std::string> bad_words = {};
  // As the request has them.
  std::vector<int32_t> stop_ids = {};
  bool ignore_eos = false;
};

// Whether a thought may come before an answer that is held to a form. With thinking off it would
// only be the way around an answer that does not come easily.
grammar::Constraint::Thought ThoughtBeforeForm(bool starts_in_thought, bool thinking_is_on);

// Makes a constraint if there is none and the rules need one. The error begins with the name of
// the rule.
Status AddRules(const AnswerRules& rules, const TextModel& text,
                std::optional<grammar::Constraint>* constraint);

}  // namespace lapidary
