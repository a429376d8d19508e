// Where in the experts' scratch what lies, in closed form. No CUDA types: memory is planned where
// there is no GPU, too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lapidary::cuda {

inline constexpr int kMaxExperts = 256;

// Of routing, int32, zero between calls: rows by expert, and blocks that are done.
inline constexpr int kRouteCounters = kMaxExperts + 1;

// Sizes that everything in moe.h shares.
struct MoeShape {
  int rows = 0;
  int hidden = 0;
  int width = 0;
  int num_experts = 0;
  int top_k = 0;
};

// Rows that chose one expert, at most GroupPlan::rows of them: positions [begin, begin + count) of
// `order`, which holds row * top_k + rank. An expert that more rows chose has several groups, side
// by side. The order within an expert is left to chance; no result depends on it.
struct alignas(16) RowGroup {
  int32_t expert;
  int32_t begin;
  int32_t count;
  int32_t unused;
};

// Which kernel multiplies groups, and how many rows a group may have. All sum in the same order.
struct GroupPlan {
  // kFewRows: the portable one, whose blocks find the rows of an expert among all choices
  // themselves, so that nobody has to group them; at most kMaxSearchedChoices, of 16 rows.
  enum class Kernel { kFewRows, kPortable, kHopper };
  Kernel kernel = Kernel::kPortable;
  int rows = 16;  // few: 16; portable: 16, 64 or 128; Hopper: 64 or 160
  // Hopper: an expert has an even number of groups, of which two are multiplied together. One may
  // be empty.
  bool in_pairs = false;
};
inline constexpr int kMaxSearchedChoices = 128;
// For a step of so many rows. Few are spread thinly: one row in 16 chooses a given expert where 8
// of 128 are chosen. As measured (docs/notes/2026-11-experts.md).
inline GroupPlan PlanGroups(const MoeShape& shape) {
  const int rows = shape.rows;
  if (rows <= 16 && rows * shape.top_k <= kMaxSearchedChoices) {
    return {GroupPlan::Kernel::kFewRows, 16};
  }
  if (rows <= 128) return {GroupPlan::Kernel::kPortable, 16};
  if (rows <= 768) return {GroupPlan::Kernel::kHopper, 64};
  return {GroupPlan::Kernel::kHopper, 160, rows > 3072};
}
inline int64_t MaxRowGroups(const MoeShape& shape, const GroupPlan& plan) {
  const int64_t assignments = int64_t{shape.rows} * shape.top_k;
  const int64_t chosen = std::min<int64_t>(shape.num_experts, assignments);
  return (plan.in_pairs ? 2 : 1) * chosen + assignments / plan.rows;
}
// Of any plan.
inline int64_t MaxRowGroups(const MoeShape& shape) {
  return MaxRowGroups(shape, {.rows = 16, .in_pairs = true});
}

// Byte offsets.
struct MoeScratchLayout {
  int64_t places = 0;      // int32 [rows * top_k]: of a choice among those of its expert
  int64_t order = 0;       // int32 [rows * top_k]
  int64_t num_groups = 0;  // int32 [1]
  int64_t groups = 0;      // RowGroup [num_groups]
  int64_t act = 0;         // bf16 [rows * top_k, width], in the order of `order`
  int64_t outputs = 0;     // bf16 [rows * top_k, hidden], by row and rank
  int64_t num_bytes = 0;

  explicit MoeScratchLayout(const MoeShape& shape) {
    constexpr int64_t kBf16Bytes = 2;
    const int64_t assignments = int64_t{shape.rows} * shape.top_k;
    places = Place(assignments * int64_t{sizeof(int32_t)});
    order = Place(assignments * int64_t{sizeof(int32_t)});
    num_groups = Place(sizeof(int32_t));
    groups = Place(MaxRowGroups(shape) * int64_t{sizeof(RowGroup)});
    act = Place(assignments * shape.width * kBf16Bytes);
    outputs = Place(assignments * shape.hidden * kBf16Bytes);
  }

 private:
  int64_t Place(int64_t part_bytes) {
    constexpr int64_t kAlign = 128;
    const int64_t at = num_bytes;
    num_bytes += (part_bytes + kAlign - 1) / kAlign * kAlign;
    return at;
  }
};

// Bytes of the scratch that RunRoute fills and RunExperts reads on and works in. It needs no
// initialisation; shape.rows may be more than those of a call.
inline int64_t ExpertScratchBytes(const MoeShape& shape) {
  return MoeScratchLayout(shape).num_bytes;
}

}  // namespace lapidary::cuda
