// Routing in one launch (moe_router.cu); of many rows (moe_router_wide.cu) a second one puts them
// in order by expert.
#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/moe/moe_groups.h"
#include "ops/cuda/moe/router_sums.cuh"
#include "ops/cuda/moe/row_groups.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kGroupThreads = 1024;
constexpr int kOrderThreads = kMaxExperts;
constexpr int kChoicesOfThread = 4;

struct GroupParams {
  MoeShape shape;
  GroupPlan plan;
  const int32_t* experts;
  MoeScratch scratch;
  int32_t* counters;  // of OrderKernel
};

// One block.
__global__ void __launch_bounds__(kGroupThreads, 1) GroupKernel(GroupParams params) {
  __shared__ ExpertRows by_expert;
  AllowNextKernel();
  WaitForPreviousKernel();
  GroupRows(params.shape, params.plan, params.experts, by_expert, params.scratch);
}

// Behind the router: every block finds the starts for itself and orders some of the choices.
__global__ void __launch_bounds__(kOrderThreads) OrderKernel(GroupParams params) {
  __shared__ ExpertRows by_expert;
  __shared__ int is_last;
  AllowNextKernel();
  const int num_experts = params.shape.num_experts;
  const int num_choices = params.shape.rows * params.shape.top_k;
  const int thread = static_cast<int>(threadIdx.x);
  WaitForPreviousKernel();
  int experts[kChoicesOfThread];
  int places[kChoicesOfThread];
  const int first = blockIdx.x * kOrderThreads * kChoicesOfThread + thread;
#pragma unroll
  for (int i = 0; i < kChoicesOfThread; ++i) {
    const int idx = first + i * kOrderThreads;
    if (idx >= num_choices) break;
    experts[i] = params.experts[idx];
    places[i] = params.scratch.places[idx];
  }
  by_expert.counts[thread] = thread < num_experts ? params.counters[thread] : 0;
  __syncthreads();
  if (thread < kWarpSize) {
    const int num_groups = ScanCounts(params.plan, by_expert);
    if (thread == 0) {
      if (blockIdx.x == 0) *params.scratch.num_groups = num_groups;
      is_last = atomicAdd(params.counters + kMaxExperts, 1) == gridDim.x - 1;
    }
  }
  __syncthreads();
  if (is_last) {  // All have read the counts.
    params.counters[thread] = 0;
    if (thread == 0) params.counters[kMaxExperts] = 0;
  }
  if (blockIdx.x == 0 && thread < num_experts) {
    StoreGroups(params.plan, by_expert, thread, params.scratch.groups);
  }
#pragma unroll
  for (int i = 0; i < kChoicesOfThread; ++i) {
    const int idx = first + i * kOrderThreads;
    if (idx >= num_choices) break;
    params.scratch.order[by_expert.starts[experts[i]] + places[i]] = idx;
  }
}

}  // namespace

void RunRoute(const LaunchContext& context, const RouteCall& call) {
  const MoeShape& shape = call.shape;
  CHECK_OK(MoeSupports(shape));
  CHECK(call.counters != nullptr);
  CheckBf16(call.router_weight, shape.num_experts, shape.hidden);
  const MoeScratch scratch(shape, call.scratch);
  const bool is_wide = shape.rows >= kMinWideRows && IsHeld(shape);
  (is_wide ? RunWideRouter : RunRouter)(context, call, scratch);
  if (shape.rows <= kMaxRowsGroupedByRouter) return;
  constexpr int kChoicesOfBlock = kOrderThreads * kChoicesOfThread;
  Launch(context, OrderKernel,
         dim3((shape.rows * shape.top_k + kChoicesOfBlock - 1) / kChoicesOfBlock),
         dim3(kOrderThreads), 0,
         GroupParams{shape, call.plan, call.experts, scratch, call.counters});
}

void RunGroupRows(const LaunchContext& context, const MoeShape& shape, const GroupPlan& plan,
                  const int32_t* experts, void* scratch) {
  if (plan.kernel == GroupPlan::Kernel::kFewRows) return;
  Launch(context, GroupKernel, dim3(1), dim3(kGroupThreads), 0,
         GroupParams{shape, plan, experts, MoeScratch(shape, scratch), nullptr});
}

}  // namespace lapidary::cuda
