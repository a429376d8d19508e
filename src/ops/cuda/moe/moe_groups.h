// What the kernels of moe.h pass on to each other: rows grouped by expert, and the product over
// such groups.
#pragma once

#include <cstddef>

#include "ops/cuda/moe/moe.h"

namespace lapidary::cuda {

// The parts of scratch (MoeScratchLayout).
struct MoeScratch {
  int32_t* places;
  int32_t* order;
  int32_t* num_groups;
  RowGroup* groups;
  bf16* act;
  bf16* outputs;

  MoeScratch(const MoeShape& shape, void* start) {
    const MoeScratchLayout layout(shape);
    std::byte* base = static_cast<std::byte*>(start);
    places = reinterpret_cast<int32_t*>(base + layout.places);
    order = reinterpret_cast<int32_t*>(base + layout.order);
    num_groups = reinterpret_cast<int32_t*>(base + layout.num_groups);
    groups = reinterpret_cast<RowGroup*>(base + layout.groups);
    act = reinterpret_cast<bf16*>(base + layout.act);
    outputs = reinterpret_cast<bf16*>(base + layout.outputs);
  }
};

// The choice and x of a call, and its groups, if the rows are not more than this. Of more rows, how
// many chose each expert (RouteCall::counters), and each choice's place among those of its expert.
inline constexpr int kMaxRowsGroupedByRouter = 128;
void RunRouter(const LaunchContext& context, const RouteCall& call, const MoeScratch& scratch);
// The same bits for more rows than that, of shapes that IsHeld() (router_sums.cuh); faster from
// kMinWideRows on.
inline constexpr int kMinWideRows = 3201;
void RunWideRouter(const LaunchContext& context, const RouteCall& call, const MoeScratch& scratch);

// One product of all groups: gated, act = gelu(gate x) * (up x) for rows of x that `order` names;
// else outputs = down act, from positions to where `order` names. Few rows lie in `act` as they do
// in `experts`.
struct GroupProduct {
  const bf16* weight;  // [experts, out_dim * (gated ? 2 : 1), in_dim]
  const bf16* in;
  bf16* out;
  const int32_t* order;
  const RowGroup* groups;
  const int32_t* num_groups;
  const int32_t* experts;  // the choices; what few rows have in place of the three before
  int num_choices;
  int64_t max_groups;
  int num_experts;
  int in_dim;
  int out_dim;
  int top_k;
  int rows_per_group;  // at most
  bool in_pairs;
};

// The not gated product loads its first weights before the kernel before it has ended; that must
// be a gated one.
void RunFewRowsProduct(const LaunchContext& context, const GroupProduct& product, bool gated);
void RunPortableProduct(const LaunchContext& context, const GroupProduct& product, bool gated);
void RunHopperProduct(const LaunchContext& context, const GroupProduct& product, bool gated);

}  // namespace lapidary::cuda
