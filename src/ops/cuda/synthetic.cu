#include "ops/cuda/synthetic.h"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    FillSyntheticKernel(SyntheticLaw law, int64_t count, bf16* to) {
  WaitForPreviousKernel();
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < count;
       at += int64_t{gridDim.x} * kThreads) {
    to[at] = __float2bfloat16_rn(SyntheticValue(law, static_cast<uint64_t>(at)));
  }
}

}  // namespace

void RunFillSynthetic(const LaunchContext& context, const SyntheticLaw& law, int64_t count,
                      bf16* to) {
  Launch(context, FillSyntheticKernel, dim3(16 * context.Device().num_sms), dim3(kThreads), 0, law,
         count, to);
}

}  // namespace lapidary::cuda
