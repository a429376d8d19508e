// One run of Bpe::Encode: cuts a text into words, encodes each, remembers recent ones.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/bpe.h"

namespace lapidary {

class BpeEncoder {
 public:
  // Keeps references to all three for its short life.
  BpeEncoder(const Bpe& bpe, std::string_view text, std::vector<int32_t>* ids);

  void Run();

 private:
  // A merged symbol lives in the first of its slots. The others are dead, and the second and the
  // last of them hold the number of slots, so that neighbours are found from either side:
  //
  //   slot    0       1       2       3        4
  //   id      abcd    4       -       4        e        "abcd" has slots 0 to 3
  //   rank    ...     kDead   kDead   kDead    ...
  //
  // Eight bytes per code point: in long words memory traffic is what costs.
  struct Symbol {
    int32_t id;     // or, in a dead slot, the number of slots
    uint32_t rank;  // of the pair (this, next); kNoRank if it cannot merge
  };

  // A word seen before in this text, and where its ids lie in *ids_. The memory is the text and the
  // output themselves, so the cache needs no lock, no copies and no bound beyond its table.
  struct CachedWord {
    size_t text_begin = 0;
    size_t ids_begin = 0;
    uint32_t num_bytes = 0;  // 0: free
    uint32_t num_ids = 0;
  };

  void EncodeCached(size_t begin, size_t end, uint64_t hash);
  void EncodeWord(std::string_view word);
  void SplitIntoSymbols(std::string_view word);
  void MergeShort();
  uint32_t Next(uint32_t pos) const;  // symbols_.size() after the last symbol
  uint32_t Prev(uint32_t pos) const;  // `pos` must not be 0
  template <typename Queue>
  void MergeLong();

  const Bpe& bpe_;
  std::string_view text_;
  std::vector<int32_t>& ids_;
  std::vector<CachedWord> cache_;  // direct-mapped, a power of two, or empty for a short text
  std::vector<Symbol> symbols_;
};

}  // namespace lapidary
