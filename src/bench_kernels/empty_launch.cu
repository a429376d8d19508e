#include "bench_kernels/empty_launch.h"

namespace lapidary {
namespace {

__global__ void EmptyKernel() {
  cuda::AllowNextKernel();
  cuda::WaitForPreviousKernel();
}

}  // namespace

void LaunchEmpty(const cuda::LaunchContext& context) {
  cuda::Launch(context, EmptyKernel, dim3(1), dim3(128), 0);
}

}  // namespace lapidary
