#include "ops/cuda/prepare_step.h"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 1024;

// One block: its phases wait for each other, and even thousands of rows are a few for each thread.
// It does not allow the next kernel to start early: what it prepares counts as in place before the
// step began (launch.h).
__global__ void __launch_bounds__(kThreads)
    PrepareStepKernel(const __grid_constant__ PrepareStepCall call) {
  WaitForPreviousKernel();
  PrepareStep(call, static_cast<int>(threadIdx.x), kThreads, [] { __syncthreads(); });
}

__global__ void __launch_bounds__(kThreads)
    PublishIdsKernel(const __grid_constant__ PublishIdsCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  for (int row = threadIdx.x; row < call.rows; row += kThreads) {
    call.ids_out[row] = call.token_ids[row];
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *static_cast<volatile int32_t*>(call.number_out) = call.counts->step_number;
}

}  // namespace

void RunPublishIds(const LaunchContext& context, const PublishIdsCall& call) {
  Launch(context, PublishIdsKernel, dim3(1), dim3(kThreads), 0, call);
}

void RunPrepareStep(const LaunchContext& context, const PrepareStepCall& call) {
  Launch(context, PrepareStepKernel, dim3(1), dim3(kThreads), 0, call);
}

}  // namespace lapidary::cuda
