#include "session/answer_rules.h"

#include <algorithm>

namespace lapidary {
namespace {

Status AddBannedRuns(const std::vector<std::string>& words, const Tokenizer& tokenizer,
                     std::vector<std::vector<int32_t>>* runs) {
  if (words.size() > kMaxBadWords) {
    return MakeError("bad_words: {} words given, at most {} are allowed", words.size(),
                     kMaxBadWords);
  }
  for (const std::string& word : words) {
    if (word.size() > kMaxBadWordBytes) {
      return MakeError("bad_words: a word has {} bytes, at most {} are allowed", word.size(),
                       kMaxBadWordBytes);
    }
    const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size()));
    if (bare.empty()) return MakeError("bad_words: a word is empty");
    for (const std::string& spelling : {bare, " " + bare}) {
      runs->push_back(tokenizer.Encode(spelling, SpecialTokens::kPlain));
    }
  }
  return {};
}

}  // namespace

grammar::Constraint::Thought ThoughtBeforeForm(bool starts_in_thought, bool thinking_is_on) {
  using Thought = grammar::Constraint::Thought;
  if (starts_in_thought) return Thought::kIsOpen;
  return thinking_is_on ? Thought::kMayOpen : Thought::kNone;
}

Status AddRules(const AnswerRules& rules, const TextModel& text,
                std::optional<grammar::Constraint>* constraint) {
  if (rules.min_tokens == 0 && rules.bad_words.empty()) return {};
  if (!text.tokenizer.ok()) return text.tokenizer.error();
  if (!*constraint) *constraint = {.kind = grammar::Constraint::Kind::kAnything};
  grammar::TokenRules& tokens = (*constraint)->rules;
  if (rules.min_tokens > 0) {
    tokens.min_tokens = rules.min_tokens;
    tokens.late_tokens = rules.stop_ids;
    if (!rules.ignore_eos) {
      tokens.late_tokens.insert(tokens.late_tokens.end(), text.defaults.stop_ids.begin(),
                                text.defaults.stop_ids.end());
    }
  }
  return AddBannedRuns(rules.bad_words, *text.tokenizer, &tokens.banned_runs);
}

}  // namespace lapidary
