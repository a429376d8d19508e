// A hash map from 64-bit keys to 32-bit values in one flat array: built once, then only read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lapidary {

// Open addressing with linear probing, at most 5/8 full. Safe to read from many threads.
class FlatMap {
 public:
  static constexpr uint64_t kNoKey = ~uint64_t{0};  // not a valid key
  static constexpr uint32_t kNotFound = ~uint32_t{0};

  // Adds `key` or replaces its value.
  void Set(uint64_t key, uint32_t value) {
    if ((num_keys_ + 1) * 8 > slots_.size() * 5) Grow();
    Slot& slot = slots_[Probe(key)];
    num_keys_ += slot.key == kNoKey;
    slot = {key, value};
  }

  uint32_t Find(uint64_t key) const {
    if (slots_.empty()) return kNotFound;
    const Slot& slot = slots_[Probe(key)];
    return slot.key == key ? slot.value : kNotFound;
  }

  size_t num_keys() const { return num_keys_; }

 private:
  struct Slot {
    uint64_t key = kNoKey;
    uint32_t value = 0;
  };

  // The slot that holds `key`, or the free one where it belongs.
  size_t Probe(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t idx = ((key ^ key >> 29) * 0x9E3779B97F4A7C15u) >> shift_;
    while (slots_[idx].key != key && slots_[idx].key != kNoKey) idx = (idx + 1) & mask;
    return idx;
  }

  void Grow() {
    std::vector<Slot> old = std::move(slots_);
    slots_ = std::vector<Slot>(old.empty() ? 16 : old.size() * 2);
    shift_ = old.empty() ? 60 : shift_ - 1;
    for (const Slot& slot : old) {
      if (slot.key != kNoKey) slots_[Probe(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two, 2^(64 - shift_)
  int shift_ = 64;
  size_t num_keys_ = 0;
};

}  // namespace lapidary
