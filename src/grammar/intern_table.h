// Finds equal things by hash: a table of ids whose contents live with the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lapidary::grammar {

inline uint64_t MixHash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

// Open addressing with linear probing; ids are never removed.
class InternTable {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  InternTable() : slots_(64) {}

  // The id for which `equal(id)` holds, or kNone.
  template <typename Equal>
  uint32_t Find(uint64_t hash, Equal equal) const {
    const size_t mask = slots_.size() - 1;
    for (size_t slot = hash & mask;; slot = (slot + 1) & mask) {
      if (slots_[slot].id == kNone) return kNone;
      if (slots_[slot].hash == hash && equal(slots_[slot].id)) return slots_[slot].id;
    }
  }

  // `id` must not be in the table.
  void Insert(uint64_t hash, uint32_t id) {
    if (2 * ++num_ids_ > slots_.size()) Grow();
    Place(slots_, {hash, id});
  }

  size_t num_bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t id = kNone;
  };

  static void Place(std::vector<Slot>& slots, Slot entry) {
    const size_t mask = slots.size() - 1;
    size_t slot = entry.hash & mask;
    while (slots[slot].id != kNone) slot = (slot + 1) & mask;
    slots[slot] = entry;
  }
  void Grow() {
    std::vector<Slot> larger(slots_.size() * 2);
    for (const Slot& slot : slots_) {
      if (slot.id != kNone) Place(larger, slot);
    }
    slots_ = std::move(larger);
  }

  std::vector<Slot> slots_;
  size_t num_ids_ = 0;
};

}  // namespace lapidary::grammar
