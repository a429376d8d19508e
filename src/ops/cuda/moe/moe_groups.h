// What the kernels of moe.h pass on to each other: rows grouped by expert, and the product over
// such groups.
#pragma once

#include <algorithm>
#include <cstddef>

#include "ops/cuda/moe/moe.h"

namespace lapidary::cuda {

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

// Where in scratch what lies.
struct MoeScratch {
  float* logits;        // [rows, experts]
  int32_t* order;       // [rows * top_k]
  int32_t* num_groups;  // [1]
  RowGroup* groups;     // [num_groups]
  bf16* act;            // [rows * top_k, width], in the order of `order`
  bf16* outputs;        // [rows * top_k, hidden], by row and rank
  int64_t num_bytes;

  MoeScratch(const MoeShape& shape, void* start) {
    const int64_t assignments = int64_t{shape.rows} * shape.top_k;
    std::byte* base = static_cast<std::byte*>(start);
    int64_t end = 0;
    const auto take = [&](auto*& pointer, int64_t count) {
      constexpr int64_t kAlign = 128;
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + end);
      end += (count * static_cast<int64_t>(sizeof(*pointer)) + kAlign - 1) / kAlign * kAlign;
    };
    take(logits, int64_t{shape.rows} * shape.num_experts);
    take(order, assignments);
    take(num_groups, 1);
    take(groups, MaxGroups(shape, kNarrowGroupRows));
    take(act, assignments * shape.width);
    take(outputs, assignments * shape.hidden);
    num_bytes = end;
  }

  static int64_t MaxGroups(const MoeShape& shape, int rows_per_group) {
    const int64_t assignments = int64_t{shape.rows} * shape.top_k;
    return std::min(assignments, shape.num_experts + assignments / rows_per_group);
  }
};

// One product of all groups: gated, act = gelu(gate x) * (up x) for rows of x that `order` names;
// else outputs = down act, from positions to where `order` names.
struct GroupProduct {
  const bf16* weight;  // [experts, out_dim * (gated ? 2 : 1), in_dim]
  const bf16* in;
  bf16* out;
  const int32_t* order;
  const RowGroup* groups;
  const int32_t* num_groups;
  int64_t max_groups;
  int in_dim;
  int out_dim;
  int top_k;
  int rows_per_group;
};

// The not gated product loads its first weights before the kernel before it has ended; that must
// be a gated one.
void RunGroupProduct(const LaunchContext& context, const GroupProduct& product, bool gated);

}  // namespace lapidary::cuda
