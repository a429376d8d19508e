#include "text/stop_strings.h"

namespace lapidary {

Result<StopStrings> StopStrings::Create(const std::vector<std::string>& strings,
                                        bool include_stop) {
  if (strings.size() > kMaxStopStrings) {
    return MakeError("stop: {} strings given, at most {} are allowed", strings.size(),
                     kMaxStopStrings);
  }
  StopStrings stop;
  stop.include_stop_ = include_stop;
  if (strings.empty()) return stop;
  stop.nodes_.emplace_back();
  for (size_t string_idx = 0; string_idx < strings.size(); ++string_idx) {
    const std::string& text = strings[string_idx];
    if (text.empty()) return MakeError("stop: string {} is empty", string_idx);
    if (text.size() > kMaxStopStringBytes) {
      return MakeError("stop: string {} has {} bytes, at most {} are allowed", string_idx,
                       text.size(), kMaxStopStringBytes);
    }
    int32_t node = 0;
    for (const char c : text) {
      node = stop.Insert(node, static_cast<uint8_t>(c), static_cast<int32_t>(string_idx));
    }
    // Of a string given twice, the first is reported.
    if (stop.nodes_[node].match < 0) stop.nodes_[node].match = static_cast<int32_t>(string_idx);
  }
  stop.strings_ = strings;
  stop.LinkSuffixes();
  return stop;
}

int32_t StopStrings::Child(int32_t node, uint8_t byte) const {
  int32_t child = nodes_[node].first_child;
  while (child >= 0 && nodes_[child].byte != byte) child = nodes_[child].next_sibling;
  return child;  // At most kMaxStopStrings siblings.
}

int32_t StopStrings::Insert(int32_t node, uint8_t byte, int32_t owner) {
  if (const int32_t child = Child(node, byte); child >= 0) return child;
  Node added;
  added.byte = byte;
  added.owner = owner;
  added.next_sibling = nodes_[node].first_child;
  added.depth = nodes_[node].depth + 1;
  nodes_[node].first_child = static_cast<int32_t>(nodes_.size());
  nodes_.push_back(added);
  return nodes_[node].first_child;
}

// Breadth first, so that the suffix of a node is linked before the node.
void StopStrings::LinkSuffixes() {
  std::vector<int32_t> queue = {0};
  for (size_t head = 0; head < queue.size(); ++head) {
    const int32_t parent = queue[head];
    for (int32_t node = nodes_[parent].first_child; node >= 0; node = nodes_[node].next_sibling) {
      queue.push_back(node);
      if (parent == 0) continue;  // Of depth 1: only the empty suffix.
      int32_t suffix = nodes_[parent].fail;
      int32_t target = Child(suffix, nodes_[node].byte);
      while (target < 0 && suffix != 0) {
        suffix = nodes_[suffix].fail;
        target = Child(suffix, nodes_[node].byte);
      }
      nodes_[node].fail = target < 0 ? 0 : target;
      if (nodes_[node].match < 0) nodes_[node].match = nodes_[nodes_[node].fail].match;
    }
  }
}

std::string_view StopStrings::HeldText(int32_t node) const {
  return std::string_view(strings_[nodes_[node].owner]).substr(0, nodes_[node].depth);
}

std::string StopStrings::Push(std::string_view piece) { return Push(piece, /*may_stop=*/true); }

std::string StopStrings::PushUnstopped(std::string_view piece) {
  return Push(piece, /*may_stop=*/false);
}

std::string StopStrings::Push(std::string_view piece, bool may_stop) {
  if (matched()) return {};
  if (nodes_.empty()) return std::string(piece);
  const std::string_view held = HeldText(state_);
  size_t num_taken = 0;
  while (num_taken < piece.size() && !matched()) {
    const uint8_t byte = static_cast<uint8_t>(piece[num_taken++]);
    int32_t next = Child(state_, byte);
    while (next < 0 && state_ != 0) {
      state_ = nodes_[state_].fail;
      next = Child(state_, byte);
    }
    state_ = next < 0 ? 0 : next;
    if (may_stop) match_ = nodes_[state_].match;
  }
  // Of `held` and the bytes taken, all is safe but the new state's prefix, or the match.
  size_t num_kept_back = static_cast<size_t>(nodes_[state_].depth);
  if (matched()) num_kept_back = include_stop_ ? 0 : strings_[match_].size();
  const size_t num_safe = held.size() + num_taken - num_kept_back;
  std::string safe(held.substr(0, num_safe));
  if (num_safe > held.size()) safe += piece.substr(0, num_safe - held.size());
  return safe;
}

std::string StopStrings::Finish() {
  if (matched() || nodes_.empty()) return {};
  std::string rest(HeldText(state_));
  state_ = 0;
  return rest;
}

}  // namespace lapidary
