#include "kv/kv_layout.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace lapidary {

KvLayout MakeKvLayout(const ModelPlan& plan, KvFormat format,
                      std::array<int, kNumKvGroups> tokens_per_page) {
  KvLayout layout;
  layout.format = format;
  layout.tokens_per_page = tokens_per_page;
  layout.layer_offset.assign(plan.num_layers, -1);
  std::array<int64_t, kNumKvGroups> used_bytes{};
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    CHECK_GT(tokens_per_page[group_idx], 0);
    int64_t offset = 0;
    for (int layer_idx : plan.kv_groups[group_idx].layers) {
      const LayerPlan& layer = plan.layers[layer_idx];
      layout.layer_offset[layer_idx] = offset;
      offset += layer.num_kv_heads * layout.HeadBytes(layer);
    }
    used_bytes[group_idx] = offset;
  }
  constexpr int64_t kAlign = 256;
  layout.page_bytes =
      (std::max(used_bytes[kSlidingGroup], used_bytes[kFullGroup]) + kAlign - 1) / kAlign * kAlign;
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    layout.wasted_bytes[group_idx] = layout.page_bytes - used_bytes[group_idx];
  }
  return layout;
}

int64_t KvBytesPerToken(const ModelPlan& plan, int group_idx, KvFormat format) {
  int64_t bytes = 0;
  for (const int layer_idx : plan.kv_groups[group_idx].layers) {
    const LayerPlan& layer = plan.layers[layer_idx];
    bytes += layer.num_kv_heads * KvEntryBytes(format, layer.kv_entry);
  }
  return bytes;
}

KvLayout MakeKvLayout(const ModelPlan& plan, KvFormat format) {
  constexpr int kSlidingStep = 16;
  constexpr int kFullStep = 64;
  const int64_t sliding = KvBytesPerToken(plan, kSlidingGroup, format);
  const int64_t full = KvBytesPerToken(plan, kFullGroup, format);
  std::array<int, kNumKvGroups> best{kSlidingStep, kFullStep};
  if (sliding == 0 || full == 0) return MakeKvLayout(plan, format, best);
  // A page wastes a share of itself in one group, and half a page per sequence and group at its
  // end: one gigabyte of page size counts like 100% waste, so 5 MB pages weigh half a per cent.
  double best_cost = std::numeric_limits<double>::infinity();
  for (int sliding_tokens = kSlidingStep; sliding_tokens <= 256; sliding_tokens += kSlidingStep) {
    for (int full_tokens = kFullStep; full_tokens <= 1024; full_tokens += kFullStep) {
      const double sliding_bytes = static_cast<double>(sliding_tokens * sliding);
      const double full_bytes = static_cast<double>(full_tokens * full);
      const double page_bytes = std::max(sliding_bytes, full_bytes);
      const double waste = 1.0 - std::min(sliding_bytes, full_bytes) / page_bytes;
      const double cost = waste + page_bytes / (1 << 30);
      if (cost < best_cost) {
        best_cost = cost;
        best = {sliding_tokens, full_tokens};
      }
    }
  }
  return MakeKvLayout(plan, format, best);
}

int64_t PagesForSequence(const ModelPlan& plan, const KvLayout& layout, int64_t length,
                         int64_t sliding_slack) {
  int64_t pages = 0;
  for (int group_idx = 0; group_idx < kNumKvGroups; ++group_idx) {
    const KvGroupPlan& group = plan.kv_groups[group_idx];
    if (group.layers.empty()) continue;
    const int64_t tokens = layout.tokens_per_page[group_idx];
    const int64_t kept =
        group.window == 0 ? length : std::min<int64_t>(length, group.window + sliding_slack);
    pages += (kept + tokens - 1) / tokens + (group.window == 0 ? 0 : 2);
  }
  return pages;
}

}  // namespace lapidary
