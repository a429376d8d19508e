// The tokens a grammar chooses from: their bytes, sorted into tries that masks are made from.
//
// Most tokens are plain text, and most states of a grammar (inside a string, say) allow all plain
// text or none. So tokens are kept in slices by what they are made of and how long they are. A
// state that allows every text of a slice's kind takes the slice's ready mask; only the other
// slices are walked token by token.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/byte_set.h"

namespace lapidary::grammar {

// Tokens as a tree in preorder. A node at depth d stands for d bytes; `skip` is the node behind its
// subtree.
struct TokenTrie {
  struct Node {
    uint32_t skip = 0;
    uint16_t depth = 0;  // 1 for children of the root, which is not stored
    uint8_t byte = 0;
    uint8_t is_token = 0;  // tokens end here: ids[first_id, next node's first_id)
    uint32_t first_id = 0;
  };
  std::vector<Node> nodes;  // and one more, for first_id
  std::vector<int32_t> ids;
  int max_depth = 0;
};

// What tokens are made of. Texts of the kind are the words of a small automaton whose states are
// all final for some token, so "every word is allowed" is decided by walking both automata
// together.
struct TokenKind {
  struct Edge {
    ByteSet bytes;
    int to;
  };
  std::vector<std::vector<Edge>> edges;  // by state; 0 is between characters, where texts begin
  int first_slice = 0;                   // the one with the longest texts
  int end_slice = 0;
  bool holds_narrower = false;  // texts of all kinds before it are texts of this one
};

// Tokens of one kind and of about the same length.
struct TokenSlice {
  int kind = 0;
  TokenTrie trie;
  std::vector<uint32_t> mask;  // [num_words]
  int32_t num_tokens = 0;
  int max_characters = 0;
};

// Immutable; about 30 MB for 262,144 tokens. May be used from any number of threads.
class TokenVocabulary {
 public:
  // A token without bytes (special tokens, holes) is never text.
  explicit TokenVocabulary(std::vector<std::string> token_bytes);

  int32_t num_tokens() const { return static_cast<int32_t>(token_bytes_.size()); }
  int32_t num_words() const { return (num_tokens() + 31) / 32; }
  std::string_view BytesOf(int32_t token) const { return token_bytes_[token]; }

  static constexpr int kMaxKinds = 6;
  // From narrow to wide.
  std::span<const TokenKind> kinds() const { return kinds_; }
  // Slices of one kind lie side by side, longest texts first.
  std::span<const TokenSlice> slices() const { return slices_; }
  // words: [num_words], set to the union of the slices whose bits are set.
  void CopySlices(uint32_t slices, std::span<uint32_t> words) const;

 private:
  std::vector<std::string> token_bytes_;
  std::vector<TokenSlice> slices_;
  std::vector<TokenKind> kinds_;
  // Slices that are often allowed together, the largest sets first.
  struct Union {
    uint32_t slices = 0;
    std::vector<uint32_t> mask;  // [num_words]
  };
  std::vector<Union> unions_;
};

}  // namespace lapidary::grammar
