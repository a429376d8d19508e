#include "text/added_tokens.h"

namespace lapidary {

void AddedTokenMatcher::Add(std::string_view content, int32_t id) {
  starts_[static_cast<uint8_t>(content.front())] = true;
  uint32_t node = 0;
  for (const char c : content) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<uint8_t>(c);
    uint32_t child = children_.Find(edge);
    if (child == FlatMap::kNotFound) {
      child = static_cast<uint32_t>(node_ids_.size());
      node_ids_.push_back(kNoToken);
      children_.Set(edge, child);
    }
    node = child;
  }
  node_ids_[node] = id;
}

void AddedTokenMatcher::Find(std::string_view text, size_t begin, size_t end,
                             std::vector<AddedTokenMatch>* matches) const {
  size_t pos = begin;
  while (pos < end) {
    if (!starts_[static_cast<uint8_t>(text[pos])]) {
      ++pos;
      continue;
    }
    AddedTokenMatch longest{pos, pos + 1, kNoToken};
    uint32_t node = 0;
    for (size_t idx = pos; idx < end; ++idx) {
      node = children_.Find(uint64_t{node} << 8 | static_cast<uint8_t>(text[idx]));
      if (node == FlatMap::kNotFound) break;
      if (node_ids_[node] != kNoToken) longest = {pos, idx + 1, node_ids_[node]};
    }
    if (longest.id != kNoToken) matches->push_back(longest);
    pos = longest.end;
  }
}

}  // namespace lapidary
