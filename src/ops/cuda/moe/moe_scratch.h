// Where in the experts' scratch what lies, in closed form. No CUDA types: memory is planned where
// there is no GPU, too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lapidary::cuda {

// Sizes that everything in moe.h shares.
struct MoeShape {
  int rows = 0;
  int hidden = 0;
  int width = 0;
  int num_experts = 0;
  int top_k = 0;
};

// Rows that chose one expert, at most RowsPerGroup() of them: positions [begin, begin + count) of
// `order`, which holds row * top_k + rank. An expert that more rows chose has several groups, side
// by side. The order within an expert is left to chance; no result depends on it.
struct alignas(16) RowGroup {
  int32_t expert;
  int32_t begin;
  int32_t count;
  int32_t unused;
};

// How many rows a group may have in a step of so many. Few rows are spread thinly: one row in 16
// chooses a given expert where 8 of 128 are chosen.
inline constexpr int kNarrowGroupRows = 16;
inline constexpr int kMiddleGroupRows = 64;
inline constexpr int kWideGroupRows = 128;
inline int RowsPerGroup(int rows) {
  return rows <= 128 ? kNarrowGroupRows : rows <= 768 ? kMiddleGroupRows : kWideGroupRows;
}
inline int64_t MaxRowGroups(const MoeShape& shape, int rows_per_group) {
  const int64_t assignments = int64_t{shape.rows} * shape.top_k;
  return std::min(assignments, shape.num_experts + assignments / rows_per_group);
}

// Byte offsets.
struct MoeScratchLayout {
  int64_t logits = 0;      // f32 [rows, experts]
  int64_t order = 0;       // int32 [rows * top_k]
  int64_t num_groups = 0;  // int32 [1]
  int64_t groups = 0;      // RowGroup [num_groups]
  int64_t act = 0;         // bf16 [rows * top_k, width], in the order of `order`
  int64_t outputs = 0;     // bf16 [rows * top_k, hidden], by row and rank
  int64_t num_bytes = 0;

  explicit MoeScratchLayout(const MoeShape& shape) {
    constexpr int64_t kBf16Bytes = 2;
    const int64_t assignments = int64_t{shape.rows} * shape.top_k;
    logits = Place(int64_t{shape.rows} * shape.num_experts * int64_t{sizeof(float)});
    order = Place(assignments * int64_t{sizeof(int32_t)});
    num_groups = Place(sizeof(int32_t));
    groups = Place(MaxRowGroups(shape, kNarrowGroupRows) * int64_t{sizeof(RowGroup)});
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
