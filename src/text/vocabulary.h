// The pieces of a vocabulary: text to id and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lapidary {

// Ids may have holes. Built by Add(), then read from any number of threads.
class Vocabulary {
 public:
  // Gemma 4 has 262,144 ids; the limit keeps a hostile id from claiming gigabytes.
  static constexpr int64_t kMaxId = (1 << 21) - 1;

  // Fails for a text or an id that is there already, and for an id outside [0, kMaxId].
  Status Add(std::string_view piece, int64_t id);

  std::optional<int32_t> Find(std::string_view piece) const;

  bool Has(int32_t id) const { return id >= 0 && id < size() && by_id_[id].length != kHole; }
  // The piece of an id for which Has() is true.
  std::string_view Piece(int32_t id) const {
    return std::string_view(arena_).substr(by_id_[id].begin, by_id_[id].length);
  }

  // The largest id plus one.
  int32_t size() const { return static_cast<int32_t>(by_id_.size()); }

 private:
  static constexpr uint32_t kHole = ~uint32_t{0};
  static constexpr int32_t kFree = -1;

  struct Span {
    uint32_t begin = 0;
    uint32_t length = kHole;
  };

  size_t Probe(std::string_view piece) const;
  void Grow();

  std::string arena_;           // all pieces, back to back, in the order they were added
  std::vector<Span> by_id_;     // [size()]
  std::vector<int32_t> slots_;  // hash table of ids keyed by their pieces, a power of two
  size_t num_pieces_ = 0;
};

}  // namespace lapidary
