// How the cached entries of a round of keys lie in the slots of a resident step's ring.
#pragma once

#include "base/host_device.h"

namespace lapidary::cuda {

// A copy costs the warp that starts it about as long as 1 KB takes to arrive, so four entries that
// lie one behind the other in a page are one copy, a run. A window begins anywhere, so in layers
// that may have one, of 256 dims, an entry is a run of its own; also where slots are so small that
// a round would need more of them.
class EntryRuns {
 public:
  // Entries of so many values, in slots of that size.
  LAPIDARY_HOST_DEVICE constexpr EntryRuns(int slot_bytes, int entry_len)
      : EntryRuns(slot_bytes, 2 * entry_len, 1) {
    constexpr int kRoundKeys = 32;
    if (!MayBeLong(entry_len)) return;
    const EntryRuns longer(slot_bytes, 2 * entry_len, kLongKeys);
    if (longer.num_slots(kRoundKeys) <= num_slots(kRoundKeys)) *this = longer;
  }

  static constexpr int kLongKeys = 4;
  LAPIDARY_HOST_DEVICE static constexpr bool MayBeLong(int entry_len) { return entry_len > 512; }

  LAPIDARY_HOST_DEVICE constexpr int keys() const { return keys_; }
  LAPIDARY_HOST_DEVICE constexpr int per_slot() const { return per_slot_; }
  LAPIDARY_HOST_DEVICE constexpr int num_bytes() const { return keys_ * entry_bytes_; }
  // Of a round. Slots that are too small for one run are never enough.
  LAPIDARY_HOST_DEVICE constexpr int num_slots(int round_keys) const {
    const int num_runs = round_keys / keys_;
    return per_slot_ == 0 ? round_keys + 1 : (num_runs + per_slot_ - 1) / per_slot_;
  }

  // Which key of the round warps take as number `idx`. Eight neighbours are of eight runs, and 32
  // of them of the same eight.
  LAPIDARY_HOST_DEVICE constexpr int KeyOf(int idx) const {
    if (keys_ == 1) return idx;
    return idx / 32 * 32 + keys_ * (idx % 8 / 2 + idx % 2 * 4) + idx % 32 / 8;
  }
  // Where a run of the round lies that is number `in_slot` of its slot. So that lanes meet
  // different banks when they read 32 bytes of every other of eight neighbours, or 64 bytes of two,
  // long runs are shifted by 32 and 64.
  LAPIDARY_HOST_DEVICE constexpr int PlaceOf(int run, int in_slot) const {
    const int shift = keys_ == 1 ? 0 : (run % 4 * 32 + run / 4 * 64) % 128;
    return in_slot * stride() + shift;
  }
  // Of a key of the round, in the slot of its run.
  LAPIDARY_HOST_DEVICE constexpr int PlaceOfKey(int key) const {
    const int run = key / keys_;
    return PlaceOf(run, run % per_slot_) + key % keys_ * entry_bytes_;
  }
  // Which of the round's slots that is.
  LAPIDARY_HOST_DEVICE constexpr int SlotOfKey(int key) const { return key / keys_ / per_slot_; }

 private:
  LAPIDARY_HOST_DEVICE constexpr EntryRuns(int slot_bytes, int entry_bytes, int keys)
      : entry_bytes_(entry_bytes), keys_(keys), per_slot_(slot_bytes / stride()) {}

  LAPIDARY_HOST_DEVICE constexpr int stride() const {
    return num_bytes() + (keys_ == 1 ? 16 : 128);
  }

  int entry_bytes_;
  int keys_;      // of a run
  int per_slot_;  // runs
};

// Of an entry that attention has a kernel for; nothing is divided while a step waits for it.
template <int kSlotBytes>
LAPIDARY_HOST_DEVICE constexpr EntryRuns EntryRunsOf(int entry_len) {
  constexpr EntryRuns kOf512(kSlotBytes, 512);
  constexpr EntryRuns kOf640(kSlotBytes, 640);
  constexpr EntryRuns kOf1024(kSlotBytes, 1024);
  return entry_len == 512 ? kOf512 : entry_len == 640 ? kOf640 : kOf1024;
}

}  // namespace lapidary::cuda
