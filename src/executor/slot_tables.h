// The page tables that an executor keeps for its slots.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "kv/sequence_pages.h"

namespace lapidary {

// Grows to the slots and blocks that are used.
class SlotTables {
 public:
  // Of one slot in one group; the scratch page where nothing was set.
  struct Table {
    std::vector<PageIndex> pages;

    PageIndex PageOf(int32_t block) const {
      return block < static_cast<int32_t>(pages.size()) ? pages[block] : kScratchPage;
    }
  };

  void Forget(int32_t slot) {
    if (slot >= static_cast<int32_t>(slots_.size())) return;
    for (Table& table : slots_[slot]) table.pages.clear();
  }

  void Set(std::span<const PageTableEntry> entries) {
    for (const PageTableEntry& entry : entries) {
      if (entry.slot >= static_cast<int32_t>(slots_.size())) slots_.resize(entry.slot + 1);
      std::vector<PageIndex>& pages = slots_[entry.slot][entry.group_idx].pages;
      if (entry.block >= static_cast<int32_t>(pages.size())) {
        pages.resize(entry.block + 1, kScratchPage);
      }
      pages[entry.block] = entry.page;
    }
  }

  const Table& Of(int32_t slot, int group_idx) const {
    static const Table kEmpty;
    return slot < static_cast<int32_t>(slots_.size()) ? slots_[slot][group_idx] : kEmpty;
  }

 private:
  std::vector<std::array<Table, kNumKvGroups>> slots_;
};

}  // namespace lapidary
