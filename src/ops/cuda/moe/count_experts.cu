#include "ops/cuda/moe/count_experts.h"
#include "ops/cuda/moe/moe.h"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChoicesOfThread = 4;
constexpr int kChoicesOfBlock = kThreads * kChoicesOfThread;
static_assert(kThreads == kMaxExperts);

// A block adds its choices up in shared memory first.
__global__ void __launch_bounds__(kThreads) CountExpertsKernel(CountExpertsCall call) {
  __shared__ unsigned counts[kMaxExperts];
  AllowNextKernel();
  counts[threadIdx.x] = 0;
  __syncthreads();
  WaitForPreviousKernel();
#pragma unroll
  for (int turn = 0; turn < kChoicesOfThread; ++turn) {
    const int idx = static_cast<int>(blockIdx.x * kChoicesOfBlock + turn * kThreads + threadIdx.x);
    if (idx >= call.rows * call.top_k) break;
    const int out = idx / call.top_k;
    const int row = call.output_rows == nullptr ? out : call.output_rows[out];
    if (call.sequences[call.sequence_of[row]].slot == call.padding_slot) continue;
    atomicAdd(counts + call.experts[idx], 1u);
  }
  __syncthreads();
  if (counts[threadIdx.x] > 0) {
    atomicAdd(call.counts + threadIdx.x, static_cast<unsigned long long>(counts[threadIdx.x]));
  }
}

}  // namespace

void RunCountExperts(const LaunchContext& context, const CountExpertsCall& call) {
  const int num_choices = call.rows * call.top_k;
  if (num_choices == 0) return;
  Launch(context, CountExpertsKernel, dim3((num_choices + kChoicesOfBlock - 1) / kChoicesOfBlock),
         dim3(kThreads), 0, call);
}

}  // namespace lapidary::cuda
