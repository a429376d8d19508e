#include "sampling/penalty_state.h"

#include <algorithm>

namespace lapidary {
namespace {

constexpr size_t kFirstSlots = 64;

size_t SlotOf(int32_t id, size_t num_slots) {
  return (static_cast<uint32_t>(id) * 0x9E3779B1u >> 7) & (num_slots - 1);
}

}  // namespace

void PenaltyState::AddPrompt(std::span<const int32_t> ids) {
  for (const int32_t id : ids) Find(id);
}

void PenaltyState::AddOutput(int32_t id) { ++Find(id).output_count; }

PenaltyState::Entry& PenaltyState::Find(int32_t id) {
  if (2 * (entries_.size() + 1) > slots_.size()) Grow();
  size_t slot = SlotOf(id, slots_.size());
  while (slots_[slot] >= 0) {
    Entry& entry = entries_[slots_[slot]];
    if (entry.id == id) return entry;
    slot = (slot + 1) & (slots_.size() - 1);
  }
  slots_[slot] = static_cast<int32_t>(entries_.size());
  return entries_.emplace_back(Entry{id, 0});
}

void PenaltyState::Grow() {
  slots_.assign(std::max(kFirstSlots, 2 * slots_.size()), -1);
  for (size_t entry_idx = 0; entry_idx < entries_.size(); ++entry_idx) {
    size_t slot = SlotOf(entries_[entry_idx].id, slots_.size());
    while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = static_cast<int32_t>(entry_idx);
  }
}

}  // namespace lapidary
