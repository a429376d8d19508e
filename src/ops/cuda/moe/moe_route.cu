// Routing in two launches (three for many rows): logits (moe_logits.cu), then the choice and the
// rows by expert.
#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/moe/expert_choice.cuh"
#include "ops/cuda/moe/moe_groups.h"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kChooseThreads = 256;
constexpr int kGroupThreads = 1024;
constexpr int kOrderThreads = kMaxExperts;
constexpr int kChoicesOfThread = 4;
constexpr int kMaxRowsInOneBlock = 128;  // whose choice the grouping block makes itself

// ---- choice ------------------------------------------------------------------------------------

struct ChooseParams {
  MoeShape shape;
  const float* logits;
  const float* per_expert_scale;
  int32_t* experts;
  float* weights;
  // Of ChooseKernel: how many rows chose each expert (zeros before), and the place of each choice
  // among those of its expert, left to chance.
  int32_t* counts;
  int32_t* places;
};

template <int kPerLane>
__device__ __forceinline__ int Choose(const ChooseParams& params, const float* scales,
                                      int64_t row) {
  const int top_k = params.shape.top_k;
  return ChooseOfRow<kPerLane>(params.logits + row * params.shape.num_experts,
                               params.shape.num_experts, top_k, scales,
                               params.experts + row * top_k, params.weights + row * top_k);
}

template <int kPerLane>
__global__ void __launch_bounds__(kChooseThreads) ChooseKernel(ChooseParams params) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int row = (blockIdx.x * kChooseThreads + threadIdx.x) / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int top_k = params.shape.top_k;
  if (row >= params.shape.rows) return;
  const int expert = Choose<kPerLane>(params, params.per_expert_scale, row);
  if (lane < top_k) {
    params.places[int64_t{row} * top_k + lane] = atomicAdd(params.counts + expert, 1);
  }
}

// ---- rows by expert ----------------------------------------------------------------------------

struct GroupParams {
  ChooseParams choose;  // its `experts` are what is grouped
  GroupPlan plan;
  int32_t* order;
  int32_t* num_groups;
  RowGroup* groups;
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

// Of every expert, in shared memory.
struct ExpertRows {
  int counts[kMaxExperts];
  int starts[kMaxExperts];        // of its rows in `order`
  int group_starts[kMaxExperts];  // of its groups
};

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
__device__ __forceinline__ void StoreGroups(const GroupParams& params, const ExpertRows& rows,
                                            int expert) {
  const int count = rows.counts[expert];
  if (count == 0) return;
  constexpr int kRowStep = 16;
  const int num_groups = NumGroups(params.plan, count);
  const int steps = num_groups * kRowStep;
  const int group_rows = (count + steps - 1) / steps * kRowStep;
  RowGroup* groups = params.groups + rows.group_starts[expert];
  for (int idx = 0; idx < num_groups; ++idx) {
    const int begin = min(count, idx * group_rows);
    groups[idx] = {expert, rows.starts[expert] + begin, min(group_rows, count - begin), 0};
  }
}

// One block. With kPerLane, as ChooseExperts has it, it makes the choice first, of at most
// kMaxRowsInOneBlock rows; with 0 that is done.
template <int kPerLane>
__global__ void __launch_bounds__(kGroupThreads, 1) GroupKernel(GroupParams params) {
  constexpr bool kChooses = kPerLane > 0;
  __shared__ ExpertRows by_expert;
  __shared__ float scales[kChooses ? kMaxExperts : 1];
  __shared__ int16_t chosen[kChooses ? kMaxRowsInOneBlock * kMaxTopK : 1];
  AllowNextKernel();
  const int num_experts = params.choose.shape.num_experts;
  const int top_k = params.choose.shape.top_k;
  const int rows = params.choose.shape.rows;
  const int lane = threadIdx.x % kWarpSize;
  for (int idx = threadIdx.x; idx < kMaxExperts; idx += kGroupThreads) {
    by_expert.counts[idx] = 0;
    if (kChooses && idx < num_experts) scales[idx] = params.choose.per_expert_scale[idx];
  }
  __syncthreads();
  WaitForPreviousKernel();
  if constexpr (kChooses) {
    for (int row = threadIdx.x / kWarpSize; row < rows; row += kGroupThreads / kWarpSize) {
      const int expert = Choose<kPerLane>(params.choose, scales, row);
      if (lane >= top_k) continue;
      chosen[row * top_k + lane] = static_cast<int16_t>(expert);
      atomicAdd(&by_expert.counts[expert], 1);
    }
  } else {
    for (int idx = threadIdx.x; idx < rows * top_k; idx += kGroupThreads) {
      atomicAdd(&by_expert.counts[params.choose.experts[idx]], 1);
    }
  }
  __syncthreads();
  if (threadIdx.x < kWarpSize) {
    const int num_groups = ScanCounts(params.plan, by_expert);
    if (lane == 0) *params.num_groups = num_groups;
  }
  __syncthreads();
  if (threadIdx.x < num_experts) StoreGroups(params, by_expert, threadIdx.x);
  __syncthreads();
  for (int idx = threadIdx.x; idx < rows * top_k; idx += kGroupThreads) {
    const int expert = kChooses ? chosen[idx] : params.choose.experts[idx];
    params.order[atomicAdd(&by_expert.starts[expert], 1)] = idx;
  }
}

// Behind ChooseKernel: every block finds the starts for itself and orders some of the choices.
__global__ void __launch_bounds__(kOrderThreads) OrderKernel(GroupParams params) {
  __shared__ ExpertRows by_expert;
  AllowNextKernel();
  const ChooseParams& choose = params.choose;
  const int num_experts = choose.shape.num_experts;
  const int num_choices = choose.shape.rows * choose.shape.top_k;
  WaitForPreviousKernel();
  int experts[kChoicesOfThread];
  int places[kChoicesOfThread];
  const int first = blockIdx.x * kOrderThreads * kChoicesOfThread + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kChoicesOfThread; ++i) {
    const int idx = first + i * kOrderThreads;
    if (idx >= num_choices) break;
    experts[i] = choose.experts[idx];
    places[i] = choose.places[idx];
  }
  by_expert.counts[threadIdx.x] = threadIdx.x < num_experts ? choose.counts[threadIdx.x] : 0;
  __syncthreads();
  if (threadIdx.x < kWarpSize) {
    const int num_groups = ScanCounts(params.plan, by_expert);
    if (blockIdx.x == 0 && threadIdx.x == 0) *params.num_groups = num_groups;
  }
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x < num_experts) StoreGroups(params, by_expert, threadIdx.x);
#pragma unroll
  for (int i = 0; i < kChoicesOfThread; ++i) {
    const int idx = first + i * kOrderThreads;
    if (idx >= num_choices) break;
    params.order[by_expert.starts[experts[i]] + places[i]] = idx;
  }
}

GroupParams MakeGroupParams(const MoeShape& shape, const GroupPlan& plan, const int32_t* experts,
                            const MoeScratch& scratch) {
  GroupParams params{};
  params.choose.shape = shape;
  params.choose.experts = const_cast<int32_t*>(experts);  // read, where it is not chosen here
  params.plan = plan;
  params.order = scratch.order;
  params.num_groups = scratch.num_groups;
  params.groups = scratch.groups;
  return params;
}

}  // namespace

void RunRoute(const LaunchContext& context, const RouteCall& call) {
  const MoeShape& shape = call.shape;
  CHECK_OK(MoeSupports(shape));
  CheckBf16(call.router_weight, shape.num_experts, shape.hidden);
  const MoeScratch scratch(shape, call.scratch);
  RunLogits(context, call, scratch);
  GroupParams params = MakeGroupParams(shape, call.plan, call.experts, scratch);
  params.choose.logits = scratch.logits;
  params.choose.per_expert_scale = call.per_expert_scale;
  params.choose.weights = call.weights;
  params.choose.counts = scratch.counts;
  params.choose.places = scratch.places;
  constexpr int kFewPerLane = 4;
  constexpr int kMostPerLane = kMaxExperts / kWarpSize;
  const bool few = shape.num_experts <= kFewPerLane * kWarpSize;
  if (shape.rows <= kMaxRowsInOneBlock) {
    Launch(context, few ? GroupKernel<kFewPerLane> : GroupKernel<kMostPerLane>, dim3(1),
           dim3(kGroupThreads), 0, params);
    return;
  }
  constexpr int kRowsPerBlock = kChooseThreads / kWarpSize;
  Launch(context, few ? ChooseKernel<kFewPerLane> : ChooseKernel<kMostPerLane>,
         dim3((shape.rows + kRowsPerBlock - 1) / kRowsPerBlock), dim3(kChooseThreads), 0,
         params.choose);
  constexpr int kChoicesOfBlock = kOrderThreads * kChoicesOfThread;
  Launch(context, OrderKernel,
         dim3((shape.rows * shape.top_k + kChoicesOfBlock - 1) / kChoicesOfBlock),
         dim3(kOrderThreads), 0, params);
}

void RunGroupRows(const LaunchContext& context, const MoeShape& shape, const GroupPlan& plan,
                  const int32_t* experts, void* scratch) {
  Launch(context, GroupKernel<0>, dim3(1), dim3(kGroupThreads), 0,
         MakeGroupParams(shape, plan, experts, MoeScratch(shape, scratch)));
}

}  // namespace lapidary::cuda
