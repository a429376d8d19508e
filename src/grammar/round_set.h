// A set of numbers that is cleared often, at no cost: what was there before the last Clear is known
// by its round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "grammar/intern_table.h"

namespace lapidary::grammar {

// Open addressing with linear probing. Clear costs nothing.
class RoundSet {
 public:
  RoundSet() : slots_(256) {}

  void Clear() {
    ++round_;
    num_keys_ = 0;
  }
  size_t size() const { return num_keys_; }

  // Whether `key` is new.
  bool Insert(uint64_t key) {
    if (2 * num_keys_ >= slots_.size()) Grow();
    Slot& slot = Find(key);
    if (slot.round == round_) return false;
    slot = {key, round_};
    ++num_keys_;
    return true;
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint64_t round = 0;
  };

  // Where the key is, or belongs.
  Slot& Find(uint64_t key) {
    const size_t mask = slots_.size() - 1;
    size_t slot = MixHash(0, key) & mask;
    while (slots_[slot].round == round_ && slots_[slot].key != key) slot = (slot + 1) & mask;
    return slots_[slot];
  }
  void Grow() {
    std::vector<Slot> smaller(slots_.size() * 2);
    smaller.swap(slots_);
    for (const Slot& slot : smaller) {
      if (slot.round == round_) Find(slot.key) = slot;
    }
  }

  std::vector<Slot> slots_;
  uint64_t round_ = 1;
  size_t num_keys_ = 0;
};

}  // namespace lapidary::grammar
