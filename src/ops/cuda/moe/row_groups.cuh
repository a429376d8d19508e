// Rows grouped by the expert they chose, by the threads of one block.
#pragma once

#include "ops/cuda/moe/moe_groups.h"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {

// Of every expert, in shared memory.
struct ExpertRows {
  int counts[kMaxExperts];
  int starts[kMaxExperts];        // of its rows in `order`
  int group_starts[kMaxExperts];  // of its groups
};

// The sum over the warp's lanes up to and including this one.
__device__ __forceinline__ int WarpScan(int value) {
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, value, offset);
    if (threadIdx.x % kWarpSize >= offset) value += other;
  }
  return value;
}

__device__ __forceinline__ int NumGroups(const GroupPlan& plan, int count) {
  const int at_once = plan.in_pairs ? 2 : 1;
  const int rows = plan.rows * at_once;
  return (count + rows - 1) / rows * at_once;
}

// A warp: the starts from the counts. Returns the number of all groups.
__device__ __forceinline__ int ScanCounts(const GroupPlan& plan, ExpertRows& rows) {
  constexpr int kCounts = kMaxExperts / kWarpSize;  // of a lane
  const int lane = threadIdx.x % kWarpSize;
  int own_counts[kCounts];
  int sum = 0;
  int group_sum = 0;
#pragma unroll
  for (int idx = 0; idx < kCounts; ++idx) {
    own_counts[idx] = rows.counts[lane * kCounts + idx];
    sum += own_counts[idx];
    group_sum += NumGroups(plan, own_counts[idx]);
  }
  int start = WarpScan(sum) - sum;
  int group_start = WarpScan(group_sum) - group_sum;
  const int num_groups = __shfl_sync(0xffffffffu, group_start + group_sum, kWarpSize - 1);
#pragma unroll
  for (int idx = 0; idx < kCounts; ++idx) {
    rows.starts[lane * kCounts + idx] = start;
    rows.group_starts[lane * kCounts + idx] = group_start;
    start += own_counts[idx];
    group_start += NumGroups(plan, own_counts[idx]);
  }
  return num_groups;
}

// An expert's groups are of about the same size, in steps of what an instruction takes.
__device__ __forceinline__ void StoreGroups(const GroupPlan& plan, const ExpertRows& rows,
                                            int expert, RowGroup* all_groups) {
  const int count = rows.counts[expert];
  if (count == 0) return;
  constexpr int kRowStep = 16;
  const int num_groups = NumGroups(plan, count);
  const int steps = num_groups * kRowStep;
  const int group_rows = (count + steps - 1) / steps * kRowStep;
  RowGroup* groups = all_groups + rows.group_starts[expert];
  for (int idx = 0; idx < num_groups; ++idx) {
    const int begin = min(count, idx * group_rows);
    groups[idx] = {expert, rows.starts[expert] + begin, min(group_rows, count - begin), 0};
  }
}

// All threads of a block: groups and order of a choice [rows, top_k], which other blocks may have
// just made. At least a thread for each expert.
__device__ __forceinline__ void GroupRows(const MoeShape& shape, const GroupPlan& plan,
                                          const int32_t* experts, ExpertRows& by_expert,
                                          const MoeScratch& scratch) {
  const int num_choices = shape.rows * shape.top_k;
  const int num_threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  for (int idx = thread; idx < kMaxExperts; idx += num_threads) by_expert.counts[idx] = 0;
  __syncthreads();
  for (int idx = thread; idx < num_choices; idx += num_threads) {
    atomicAdd(&by_expert.counts[__ldcg(experts + idx)], 1);
  }
  __syncthreads();
  if (thread < kWarpSize) {
    const int num_groups = ScanCounts(plan, by_expert);
    if (thread == 0) *scratch.num_groups = num_groups;
  }
  __syncthreads();
  if (thread < shape.num_experts) StoreGroups(plan, by_expert, thread, scratch.groups);
  __syncthreads();
  for (int idx = thread; idx < num_choices; idx += num_threads) {
    scratch.order[atomicAdd(&by_expert.starts[__ldcg(experts + idx)], 1)] = idx;
  }
}

}  // namespace lapidary::cuda
