#include "session/answer_words.h"

#include <algorithm>
#include <string>

namespace lapidary {
namespace {

// Of each kind; a large vocabulary has a hundred thousand, and checking one takes a microsecond.
constexpr size_t kMostWords = 4096;
constexpr std::string_view kBlank = "\u2581";  // as tokenizers spell it

// Letters alone: then pieces do not merge with their neighbours, and an answer that comes back in
// the next prompt has the ids it had.
bool IsWord(std::string_view piece) {
  return !piece.empty() && std::all_of(piece.begin(), piece.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

bool IsOneToken(const Tokenizer& tokenizer, const std::string& text, int32_t id) {
  return tokenizer.Encode(text, SpecialTokens::kPlain) == std::vector<int32_t>{id};
}

}  // namespace

simulated::Vocabulary AnswerWords(const TextModel& text) {
  simulated::Vocabulary words;
  if (!text.defaults.stop_ids.empty()) words.stop = text.defaults.stop_ids[0];
  if (!text.tokenizer.ok()) return words;
  const Tokenizer& tokenizer = *text.tokenizer;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::optional<std::string_view> piece = tokenizer.IdToPiece(id);
    if (!piece || tokenizer.IsSpecial(id)) continue;
    const bool has_space = piece->starts_with(kBlank);
    const std::string word(piece->substr(has_space ? kBlank.size() : 0));
    std::vector<int32_t>& list = has_space ? words.words : words.first_words;
    if (list.size() >= kMostWords || !IsWord(word)) continue;
    if (IsOneToken(tokenizer, has_space ? " " + word : word, id)) list.push_back(id);
  }
  for (const char* closer : {"<|\"|>", "\"", "}", "]", "\"}", "\"]", "<tool_call|>"}) {
    if (const auto id = tokenizer.TokenToId(closer)) words.closers.push_back(*id);
  }
  // What ends a turn also ends it in the next prompt.
  const auto end_of_turn = tokenizer.TokenToId("<turn|>");
  const std::vector<int32_t>& stops = text.defaults.stop_ids;
  if (end_of_turn && std::find(stops.begin(), stops.end(), *end_of_turn) != stops.end()) {
    words.stop = *end_of_turn;
  }
  return words;
}

}  // namespace lapidary
