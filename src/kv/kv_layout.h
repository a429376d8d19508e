// How KV lies in memory: one pool of equal pages that serve either group.
//
// A page holds `tokens_per_page[group]` tokens of ALL layers of that group that own KV; the two
// counts are chosen so that the bytes (nearly) agree, and any page can serve any group. Inside a
// page:
//
//   [owning layer][KV head][token][entry]        entry: KvEntryPlan, `element_bytes` per value
//
// Page 0 is scratch: it may hold anything, and every read of it is masked.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "model/plan.h"

namespace lapidary {

struct KvLayout {
  int element_bytes = 4;
  std::array<int, kNumKvGroups> tokens_per_page{};
  int64_t page_bytes = 0;
  std::vector<int64_t> layer_offset;  // bytes from the page's start; -1 for layers that own no KV

  // Bytes of a page that its group cannot use.
  std::array<int64_t, kNumKvGroups> wasted_bytes{};

  // Byte offset inside a page of the first entry of (layer, KV head); entries of its tokens follow.
  int64_t HeadOffset(const LayerPlan& owner, int kv_head) const {
    const int tokens = tokens_per_page[KvGroupOf(owner.kind)];
    return layer_offset[owner.index] +
           int64_t{kv_head} * tokens * owner.kv_entry.entry_len * element_bytes;
  }
};

// Chooses tokens per page: multiples of 16 (sliding) and 64 (full) whose page sizes agree best,
// small pages first.
KvLayout MakeKvLayout(const ModelPlan& plan, int element_bytes);

// The same with the counts given; tests use odd ones.
KvLayout MakeKvLayout(const ModelPlan& plan, int element_bytes,
                      std::array<int, kNumKvGroups> tokens_per_page);

// The first block of a group that the row at position `length` may see, or one `slack` before it.
inline int32_t FirstBlockInReach(const ModelPlan& plan, const KvLayout& layout, int group_idx,
                                 int32_t length, int32_t slack = 0) {
  const int window = plan.kv_groups[group_idx].window;
  if (window == 0) return 0;
  // The row sees keys from length - window + 1 on.
  return std::max(0, length - window + 1 - slack) / layout.tokens_per_page[group_idx];
}

// Pages a sequence of `length` tokens holds: all of it in the full group, window and slack (and a
// page cut at either end) in the sliding group.
int64_t PagesForSequence(const ModelPlan& plan, const KvLayout& layout, int64_t length,
                         int64_t sliding_slack);

}  // namespace lapidary
