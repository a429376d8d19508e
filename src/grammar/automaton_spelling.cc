// What will most likely come: where the grammar leaves no choice of text the tokenizer spells it,
// and answers in the same form tend to say the same in the same place.
#include <algorithm>

#include "grammar/automaton.h"

namespace lapidary::grammar {
namespace {

// Of a longer text the rest is spelled later.
constexpr size_t kMaxForcedBytes = 256;

// A token is guessed where there was a choice once it came twice more often than others.
constexpr uint8_t kMostTrust = 3;
constexpr uint8_t kTrustInChoices = 2;

// Bytes up to the last character's end; bytes that are no UTF-8 count as characters.
size_t WholeCharacters(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(text.size(), 3); ++back) {
    const auto byte = static_cast<uint8_t>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace

int Automaton::OnlyByte(StateId state) {
  if (states_[state].accepting || states_[state].num_tokens > 0) return -1;
  int only = -1;
  for (int byte_class = 0; byte_class < num_classes_; ++byte_class) {
    if (Next(state, static_cast<uint8_t>(byte_class)) == kDead) continue;
    if (only >= 0 || class_sizes_[byte_class] > 1) return -1;
    only = representative_[byte_class];
  }
  return only;
}

int32_t Automaton::OnlySpecial(StateId state) {
  const State& from = states_[state];
  if (from.accepting || from.num_meanings > 0 || from.num_tokens == 0) return -1;
  // They are sorted.
  const Meaning* tokens = meanings_.data() + from.first_meaning;
  const uint32_t first = tokens[0].next;
  return first == tokens[from.num_tokens - 1].next ? static_cast<int32_t>(first) : -1;
}

Status Automaton::SpellForcedText(StateId state) {
  states_[state].spelled = OnlySpecial(state);
  if (states_[state].spelled >= 0 || !spell_) return {};
  std::string text;
  std::vector<StateId> before = {state};  // before each byte, and behind the last
  while (text.size() < kMaxForcedBytes) {
    const int byte = OnlyByte(before.back());
    if (byte < 0) break;
    text.push_back(static_cast<char>(byte));
    before.push_back(Next(before.back(), class_of_[byte]));
  }
  if (const Status status = TakeLimitError(); !status.ok()) {
    states_[state].spelled = kNotSpelledYet;
    return status;
  }
  const bool is_cut = text.size() == kMaxForcedBytes;
  text.resize(WholeCharacters(text));
  if (text.empty()) return {};
  const std::vector<int32_t> tokens = spell_(text);
  size_t begin = 0;
  for (size_t idx = 0; idx < tokens.size(); ++idx) {
    const std::string_view bytes = vocabulary_.BytesOf(tokens[idx]);
    // Some characters are spelled with tokens that mean others, and a cut may go through a token.
    if (bytes.empty() || text.compare(begin, bytes.size(), bytes) != 0) break;
    if (is_cut && idx + 1 == tokens.size()) break;
    int32_t& spelled = states_[before[begin]].spelled;
    if (begin == 0 || spelled == kNotSpelledYet) spelled = tokens[idx];
    begin += bytes.size();
  }
  return {};
}

Result<Automaton::Guess> Automaton::GuessToken(StateId state) {
  if (state == kDead) return Guess{};
  if (states_[state].spelled == kNotSpelledYet) RETURN_IF_ERROR(SpellForcedText(state));
  const State& at = states_[state];
  const bool is_forced = at.spelled >= 0;
  // How answers spelled it goes before how the tokenizer would.
  if (at.trust >= (is_forced ? 1 : kTrustInChoices)) return Guess{at.said, is_forced};
  return Guess{at.spelled, is_forced};
}

void Automaton::Learn(StateId state, int32_t token) {
  if (state == kDead) return;
  State& at = states_[state];
  if (at.said == token) {
    at.trust = std::min<uint8_t>(at.trust + 1, kMostTrust);
  } else if (at.trust > 1) {
    --at.trust;
  } else {
    at.said = token;
    at.trust = 1;
  }
}

}  // namespace lapidary::grammar
