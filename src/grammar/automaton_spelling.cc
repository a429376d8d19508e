// How text is spelled that must come: the tokenizer says it, where the grammar leaves no choice.
#include <algorithm>

#include "grammar/automaton.h"

namespace lapidary::grammar {
namespace {

// Only the first token is taken from a text, so this is enough for any.
constexpr size_t kMaxForcedBytes = 256;

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

Result<bool> Automaton::MayReachBeyond(StateId state, size_t num_bytes) {
  ASSIGN_OR_RETURN(const TokenMask* mask, MaskOf(state));
  const auto is_longer = [&](int32_t token) {
    return vocabulary_.BytesOf(token).size() > num_bytes;
  };
  if (mask->slices == 0 && mask->words.empty()) return std::ranges::any_of(mask->tokens, is_longer);
  std::vector<uint32_t> words(vocabulary_.num_words());
  CopyMask(*mask, words);
  for (int32_t token = 0; token < vocabulary_.num_tokens(); ++token) {
    if ((words[token / 32] >> (token % 32) & 1) != 0 && is_longer(token)) return true;
  }
  return false;
}

Result<int32_t> Automaton::FindSpelledToken(StateId state) {
  if (const int32_t special = OnlySpecial(state); special >= 0) return special;
  std::string text;
  std::vector<StateId> before = {state};  // before each byte, and behind the last
  while (text.size() < kMaxForcedBytes) {
    const int byte = OnlyByte(before.back());
    if (byte < 0) break;
    text.push_back(static_cast<char>(byte));
    before.push_back(Next(before.back(), class_of_[byte]));
  }
  RETURN_IF_ERROR(TakeLimitError());
  const bool is_cut = text.size() == kMaxForcedBytes;
  text.resize(WholeCharacters(text));
  if (text.empty()) return -1;
  const std::vector<int32_t> tokens = spell_(text);
  std::vector<size_t> begins;
  size_t end = 0;
  for (const int32_t token : tokens) {
    const std::string_view bytes = vocabulary_.BytesOf(token);
    // Some characters are spelled with tokens that mean others.
    if (bytes.empty() || text.compare(end, bytes.size(), bytes) != 0) return -1;
    begins.push_back(end);
    end += bytes.size();
  }
  // A last token that could go on into what follows is the model's to choose, and then the one
  // before it. Where the text was cut, one could for certain.
  if (is_cut && !begins.empty()) begins.pop_back();
  while (!is_cut && !begins.empty()) {
    const size_t begin = begins.back();
    ASSIGN_OR_RETURN(const bool goes_on, MayReachBeyond(before[begin], text.size() - begin));
    if (!goes_on) break;
    begins.pop_back();
  }
  return begins.empty() ? -1 : tokens[0];
}

Result<int32_t> Automaton::SpelledToken(StateId state) {
  if (!spell_ || state == kDead) return -1;
  if (states_[state].spelled == kNotSpelledYet) {
    ASSIGN_OR_RETURN(const int32_t token, FindSpelledToken(state));
    states_[state].spelled = token;
  }
  return states_[state].spelled;
}

}  // namespace lapidary::grammar
