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

}  // namespace

void RunPrepareStep(const LaunchContext& context, const PrepareStepCall& call) {
  Launch(context, PrepareStepKernel, dim3(1), dim3(kThreads), 0, call);
}

}  // namespace lapidary::cuda
