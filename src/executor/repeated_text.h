// Drafts that repeat: what stood behind the last tokens when they came before, in the prompt or in
// the answer (prompt lookup).
//
//   ... the quick brown fox ... the quick |     proposes: brown fox ...
//       ^ the latest longest match    ^ the last tokens
//
// A token costs sixteen bytes at most and the same time wherever it stands: places where the same
// lengths.min tokens end are chained, the latest first, and only the first kMostTried of a chain
// are looked at.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lapidary {

// How many of the last tokens must have come before, and beyond how many more of them say nothing.
struct LookupLengths {
  int32_t min = 2;
  int32_t max = 4;
};
inline constexpr int32_t kMaxLookup = 64;

class RepeatedText {
 public:
  explicit RepeatedText(LookupLengths lengths = {}) : lengths_(lengths) {}

  // Begins anew.
  void Assign(std::span<const int32_t> tokens);
  void Append(int32_t token);
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

  struct Proposal {
    std::vector<int32_t> tokens = {};
    int32_t match_length = 0;  // last tokens that had come before
  };
  // What may follow, at most so many tokens; none where the last ones are new, or fewer of them
  // than `least_match` came before.
  Proposal Propose(int32_t max_tokens, int32_t least_match = 0) const;

 private:
  // Places of a chain that are tried.
  static constexpr int kMostTried = 32;

  uint32_t ChainOf(int32_t last) const;
  void Chain(int32_t last);
  void Rechain();
  // Of the tokens that end at `last` and of the last ones, how many are the same; at most
  // lengths_.max.
  int32_t MatchAt(int32_t last) const;

  LookupLengths lengths_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> before_;  // by token: the place before it in its chain; -1: the first
  std::vector<int32_t> latest_;  // [a power of two] by hash of lengths.min tokens; -1: none
};

}  // namespace lapidary
