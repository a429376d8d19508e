// Finding added tokens (<bos>, <|turn>, ...) in raw text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/flat_map.h"

namespace lapidary {

struct AddedTokenMatch {
  size_t begin;  // byte range [begin, end) of the text
  size_t end;
  int32_t id;
};

// A byte trie. Matching is leftmost first, and longest among those that start at one place; it
// costs at most the longest token's length per byte, and one table look-up for nearly every byte.
class AddedTokenMatcher {
 public:
  // `content` must not be empty; a content added again takes the new id.
  void Add(std::string_view content, int32_t id);

  // Appends the matches within text[begin, end), in order and without overlap.
  void Find(std::string_view text, size_t begin, size_t end,
            std::vector<AddedTokenMatch>* matches) const;

 private:
  static constexpr int32_t kNoToken = -1;

  std::array<bool, 256> starts_{};  // bytes that begin a token
  FlatMap children_;                // parent node * 256 + byte -> node
  std::vector<int32_t> node_ids_{kNoToken};
};

}  // namespace lapidary
