// How KV lies in memory: one pool of equal pages that serve either group.
//
// A page holds `tokens_per_page[group]` tokens of ALL layers of that group that own KV; the two
// counts are chosen so that the bytes (nearly) agree, and any page can serve any group. Inside a
// page:
//
//   [owning layer][KV head][token][entry]        entry: KvEntryPlan, in a KvFormat
//
// Of formats with scales, a KV head's codes of all tokens are followed by their scales,
// [token][NumKvScales].
//
// Page 0 is scratch: it may hold anything, and every read of it is masked.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "model/kv_format.h"
#include "model/plan.h"

namespace lapidary {

struct KvLayout {
  KvFormat format = KvFormat::kF32;
  std::array<int, kNumKvGroups> tokens_per_page{};
  int64_t page_bytes = 0;
  std::vector<int64_t> layer_offset;  // bytes from the page's start; -1 for layers that own no KV

  // Bytes of a page that its group cannot use.
  std::array<int64_t, kNumKvGroups> wasted_bytes{};

  // Byte offset inside a page of the first entry of (layer, KV head); entries of its tokens follow.
  int64_t HeadOffset(const LayerPlan& owner, int kv_head) const {
    return layer_offset[owner.index] + kv_head * HeadBytes(owner);
  }
  // Byte offset inside a page of their scales.
  int64_t ScalesOffset(const LayerPlan& owner, int kv_head) const {
    return HeadOffset(owner, kv_head) + CodeBytes(owner);
  }
  // Of a KV head's entries in a page.
  int64_t HeadBytes(const LayerPlan& owner) const {
    return CodeBytes(owner) + int64_t{tokens_per_page[KvGroupOf(owner.kind)]} *
                                  NumKvScales(format, owner.kv_entry) *
                                  static_cast<int64_t>(sizeof(float));
  }

 private:
  // Scales begin where an f32 may lie.
  int64_t CodeBytes(const LayerPlan& owner) const {
    const int64_t bytes = int64_t{tokens_per_page[KvGroupOf(owner.kind)]} *
                          owner.kv_entry.entry_len * KvElementBytes(format);
    return HasScales(format) ? (bytes + 15) / 16 * 16 : bytes;
  }
};

// Of a token in all layers of a group.
int64_t KvBytesPerToken(const ModelPlan& plan, int group_idx, KvFormat format);

// Chooses tokens per page: multiples of 16 (sliding) and 64 (full) whose page sizes agree best,
// small pages first.
KvLayout MakeKvLayout(const ModelPlan& plan, KvFormat format);

// The same with the counts given; tests use odd ones.
KvLayout MakeKvLayout(const ModelPlan& plan, KvFormat format,
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
