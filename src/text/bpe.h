// Byte-pair encoding with ranked merges and byte fallback, as in Gemma 4's tokenizer.json.
//
// A text starts as one symbol per code point; a code point without a piece of its own becomes one
// symbol <0xHH> per UTF-8 byte. Then the adjacent pair of lowest merge rank, the leftmost among
// equals, is merged until no pair has a rank. A space is read as U+2581 (the file's normalizer).
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/flat_map.h"
#include "text/merge_list.h"
#include "text/vocabulary.h"

namespace lapidary {

// Immutable after Build(); Encode() may be called from many threads.
class Bpe {
 public:
  // Fails when a merge names a piece that is not in the vocabulary, or a byte token is missing.
  static Result<Bpe> Build(const Vocabulary& vocabulary, const MergeList& merges);

  // Appends the ids of `text`, which is taken as plain text. O(n log n) in its length. A byte that
  // is not part of well-formed UTF-8 becomes its byte token, so nothing is lost.
  void Encode(std::string_view text, std::vector<int32_t>* ids) const;

 private:
  friend class BpeEncoder;

  static constexpr int32_t kNoId = -1;
  static constexpr uint32_t kNoRank = FlatMap::kNotFound;

  void AddCodePoint(uint32_t code_point, int32_t id);
  void AddJoint(uint32_t left, uint32_t right);

  int32_t CodePointId(uint32_t code_point) const {
    if (code_point < 128) return ascii_ids_[code_point];
    return static_cast<int32_t>(code_point_ids_.Find(code_point));  // kNotFound is kNoId
  }

  // Whether some merge could join two symbols that meet between these code points. Where none can,
  // the text may be cut without changing any id: in Gemma 4 that is before each space that follows
  // something else, around newlines, between digits, and at most changes of script.
  bool Joins(uint32_t left, uint32_t right) const {
    if (left < 128 && right < 128) return ascii_joints_[left << 7 | right];
    return joints_.Find(uint64_t{left} << 32 | right) != FlatMap::kNotFound;
  }

  uint32_t Rank(int32_t left, int32_t right) const {
    return ranks_.Find(uint64_t(uint32_t(left)) << 32 | uint32_t(right));
  }

  std::array<int32_t, 256> byte_ids_;   // <0xHH>
  std::array<int32_t, 128> ascii_ids_;  // ' ' has the id of U+2581
  FlatMap code_point_ids_;              // the other code points that are pieces
  std::bitset<128 * 128> ascii_joints_;
  FlatMap joints_;                   // left code point, right code point; only the keys matter
  FlatMap ranks_;                    // left id, right id -> rank
  std::vector<int32_t> merged_ids_;  // [rank]
  // A merge of byte tokens joins code points that cannot be told from its text: then no cuts.
  bool merges_bytes_ = false;
};

}  // namespace lapidary
