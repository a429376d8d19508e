// What a sequence has said so far, counted: the history that the penalties look at.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lapidary {

// One per sequence; O(1) per token, memory in proportion to the distinct tokens seen. Copyable.
class PenaltyState {
 public:
  struct Entry {
    int32_t id = 0;
    int32_t output_count = 0;  // 0: seen in the prompt only.
  };

  PenaltyState() = default;

  void AddPrompt(std::span<const int32_t> ids);
  void AddOutput(int32_t id);

  // Every token seen, once, in order of first sight.
  std::span<const Entry> entries() const { return entries_; }

 private:
  Entry& Find(int32_t id);
  void Grow();

  std::vector<Entry> entries_;
  std::vector<int32_t> slots_;  // Open addressing: index into entries_, or -1. Size a power of two.
};

}  // namespace lapidary
