// A limit that all compiled grammars of a model share: each says how much memory it takes.
#pragma once

#include <atomic>
#include <cstddef>

namespace lapidary::grammar {

// Kept up by the grammars themselves; outlives them.
struct GrammarMemory {
  std::atomic<size_t> num_bytes{0};
  // Beyond it no automaton grows any more: texts that need new states fail.
  size_t max_bytes = ~size_t{0};
};

// A part of it, which its owner says the size of.
class MemoryShare {
 public:
  explicit MemoryShare(GrammarMemory* memory) : memory_(memory) {}
  ~MemoryShare() { Resize(0); }
  MemoryShare(const MemoryShare&) = delete;
  MemoryShare& operator=(const MemoryShare&) = delete;

  // From one thread at a time.
  void Resize(size_t num_bytes) {
    const size_t before = num_bytes_.exchange(num_bytes, std::memory_order_relaxed);
    if (memory_ != nullptr) memory_->num_bytes += num_bytes - before;  // modulo 2^64
  }
  size_t num_bytes() const { return num_bytes_.load(std::memory_order_relaxed); }
  bool is_exhausted() const {
    return memory_ != nullptr && memory_->num_bytes > memory_->max_bytes;
  }

 private:
  GrammarMemory* const memory_;
  std::atomic<size_t> num_bytes_{0};
};

}  // namespace lapidary::grammar
