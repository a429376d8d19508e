#include "grammar/token_vocabulary.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/check.h"
#include "text/utf8.h"

namespace lapidary::grammar {
namespace {

// Kinds from narrow to wide; a token belongs to the first that fits.
enum Kind { kLower, kWord, kPhrase, kAscii, kUnicode, kOther, kNumKinds };
static_assert(kNumKinds == TokenVocabulary::kMaxKinds);

// Slices of a kind: texts of more than 32 characters, of 17 to 32, 13 to 16 and so on.
constexpr std::array<int, 6> kLeastCharacters = {33, 17, 13, 9, 5, 1};

ByteSet LowerBytes() { return ByteSet::Range('a', 'z'); }
ByteSet WordBytes() {
  ByteSet bytes = LowerBytes() | ByteSet::Range('A', 'Z') | ByteSet::Range('0', '9');
  bytes.Add('_');
  return bytes;
}
ByteSet PhraseBytes() { return WordBytes() | ByteSet::Of(' '); }
ByteSet AsciiBytes() {  // what a JSON string holds unescaped
  ByteSet bytes = ByteSet::Range(0x20, 0x7E);
  bytes.Remove('"');
  bytes.Remove('\\');
  return bytes;
}

bool AllOf(std::string_view text, const ByteSet& bytes) {
  return std::ranges::all_of(text, [&](char c) { return bytes.Has(static_cast<uint8_t>(c)); });
}

struct Classified {
  Kind kind;
  int num_characters;
};

Classified Classify(std::string_view text) {
  static const ByteSet kSets[] = {LowerBytes(), WordBytes(), PhraseBytes(), AsciiBytes()};
  for (Kind kind : {kLower, kWord, kPhrase, kAscii}) {
    if (AllOf(text, kSets[kind])) return {kind, static_cast<int>(text.size())};
  }
  int num_characters = 0;
  for (size_t at = 0; at < text.size(); ++num_characters) {
    const Utf8Char character = ReadUtf8(text.substr(at));
    const uint32_t c = character.code_point;
    const bool is_plain = character.status == Utf8Status::kComplete &&
                          (c < 0x80 ? AsciiBytes().Has(static_cast<uint8_t>(c)) : true) &&
                          c != 0x2028 && c != 0x2029;  // ends of lines for a regex's dot
    if (!is_plain) return {kOther, static_cast<int>(text.size())};
    at += character.num_bytes;
  }
  return {kUnicode, num_characters};
}

std::vector<std::vector<TokenKind::Edge>> EdgesOf(Kind kind) {
  const auto range = [](uint8_t low, uint8_t high) { return ByteSet::Range(low, high); };
  const ByteSet tail = range(0x80, 0xBF);
  switch (kind) {
    case kLower:
      return {{{LowerBytes(), 0}}};
    case kWord:
      return {{{WordBytes(), 0}}};
    case kPhrase:
      return {{{PhraseBytes(), 0}}};
    case kAscii:
      return {{{AsciiBytes(), 0}}};
    case kUnicode: {
      // 1, 2, 3: that many more tail bytes; then second bytes with a narrower range.
      ByteSet e2_second = tail;
      e2_second.Remove(0x80);
      return {{{AsciiBytes(), 0},
               {range(0xC2, 0xDF), 1},
               {ByteSet::Of(0xE0), 4},
               {ByteSet::Of(0xE1) | range(0xE3, 0xEC) | range(0xEE, 0xEF), 2},
               {ByteSet::Of(0xE2), 8},
               {ByteSet::Of(0xED), 5},
               {ByteSet::Of(0xF0), 6},
               {range(0xF1, 0xF3), 3},
               {ByteSet::Of(0xF4), 7}},
              {{tail, 0}},
              {{tail, 1}},
              {{tail, 2}},
              {{range(0xA0, 0xBF), 1}},
              {{range(0x80, 0x9F), 1}},
              {{range(0x90, 0xBF), 2}},
              {{range(0x80, 0x8F), 2}},
              {{e2_second, 1}, {ByteSet::Of(0x80), 9}},
              {{range(0x80, 0xA7) | range(0xAA, 0xBF), 0}}};
    }
    default:
      return {{{ByteSet::All(), 0}}};
  }
}

TokenTrie MakeTrie(std::vector<int32_t> ids, const std::vector<std::string>& token_bytes) {
  std::ranges::sort(ids, [&](int32_t a, int32_t b) {
    return token_bytes[a] != token_bytes[b] ? token_bytes[a] < token_bytes[b] : a < b;
  });
  TokenTrie trie;
  std::vector<uint32_t> open;  // nodes from the root to the last token
  std::string_view last;
  for (int32_t id : ids) {
    const std::string_view bytes = token_bytes[id];
    const size_t shared = std::ranges::mismatch(last, bytes).in1 - last.begin();
    while (open.size() > shared) {
      trie.nodes[open.back()].skip = static_cast<uint32_t>(trie.nodes.size());
      open.pop_back();
    }
    for (size_t depth = shared; depth < bytes.size(); ++depth) {
      open.push_back(static_cast<uint32_t>(trie.nodes.size()));
      trie.nodes.push_back({.depth = static_cast<uint16_t>(depth + 1),
                            .byte = static_cast<uint8_t>(bytes[depth]),
                            .is_token = depth + 1 == bytes.size(),
                            .first_id = static_cast<uint32_t>(trie.ids.size())});
    }
    trie.ids.push_back(id);
    trie.max_depth = std::max(trie.max_depth, static_cast<int>(bytes.size()));
    last = bytes;
  }
  for (uint32_t node : open) trie.nodes[node].skip = static_cast<uint32_t>(trie.nodes.size());
  trie.nodes.push_back({.first_id = static_cast<uint32_t>(trie.ids.size())});
  return trie;
}

}  // namespace

TokenVocabulary::TokenVocabulary(std::vector<std::string> token_bytes)
    : token_bytes_(std::move(token_bytes)) {
  std::array<std::array<std::vector<int32_t>, kLeastCharacters.size()>, kNumKinds> ids;
  for (int32_t id = 0; id < num_tokens(); ++id) {
    const std::string_view bytes = token_bytes_[id];
    // A token that a depth of the trie cannot count is never offered.
    if (bytes.empty() || bytes.size() > std::numeric_limits<uint16_t>::max()) continue;
    const auto [kind, num_characters] = Classify(bytes);
    size_t bucket = 0;
    while (num_characters < kLeastCharacters[bucket]) ++bucket;
    ids[kind][kind == kOther ? 0 : bucket].push_back(id);
  }
  for (int kind = 0; kind < kNumKinds; ++kind) {
    const int first = static_cast<int>(slices_.size());
    for (std::vector<int32_t>& slice_ids : ids[kind]) {
      if (slice_ids.empty()) continue;
      TokenSlice slice;
      slice.kind = static_cast<int>(kinds_.size());
      slice.num_tokens = static_cast<int32_t>(slice_ids.size());
      for (int32_t id : slice_ids) {
        slice.max_characters =
            std::max(slice.max_characters, Classify(token_bytes_[id]).num_characters);
      }
      slice.mask.resize(num_words());
      for (int32_t id : slice_ids) slice.mask[id / 32] |= 1u << (id % 32);
      slice.trie = MakeTrie(std::move(slice_ids), token_bytes_);
      slices_.push_back(std::move(slice));
    }
    const int end = static_cast<int>(slices_.size());
    if (end == first) continue;
    kinds_.push_back({.edges = EdgesOf(static_cast<Kind>(kind)),
                      .first_slice = first,
                      .end_slice = end,
                      .holds_narrower = kind != kOther});
  }
  CHECK_LE(slices_.size(), 32);
  // Texts of a kind are texts of the wider kinds too, so states allow a kind with all before it.
  for (int kind = static_cast<int>(kinds_.size()); kind-- > 0;) {
    Union& group = unions_.emplace_back();
    group.mask.resize(num_words());
    for (int slice = 0; slice < kinds_[kind].end_slice; ++slice) {
      group.slices |= 1u << slice;
      for (int32_t word = 0; word < num_words(); ++word) {
        group.mask[word] |= slices_[slice].mask[word];
      }
    }
  }
}

void TokenVocabulary::CopySlices(uint32_t slices, std::span<uint32_t> words) const {
  const auto group = std::ranges::find_if(
      unions_, [&](const Union& all) { return (slices & all.slices) == all.slices; });
  if (group != unions_.end()) {
    std::ranges::copy(group->mask, words.begin());
    slices &= ~group->slices;
  } else {
    std::ranges::fill(words, 0);
  }
  for (; slices != 0; slices &= slices - 1) {
    const std::vector<uint32_t>& mask = slices_[std::countr_zero(slices)].mask;
    for (size_t i = 0; i < words.size(); ++i) words[i] |= mask[i];
  }
}

}  // namespace lapidary::grammar
