// The choice of experts from given logits: a warp for each row.
#include <cuda_fp16.h>

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/moe/expert_choice.cuh"
#include "ops/cuda/moe/moe.h"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRowsPerBlock = kThreads / kWarpSize;

template <typename T, int kPerLane>
__global__ void __launch_bounds__(kThreads) ChooseKernel(ChooseCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kWarpSize;
  if (row >= call.rows) return;
  const T* row_logits = static_cast<const T*>(call.logits) + row * call.num_experts;
  const int lane = threadIdx.x % kWarpSize;
  float logits[kPerLane];
#pragma unroll
  for (int idx = 0; idx < kPerLane; ++idx) {
    const int expert = idx * kWarpSize + lane;
    logits[idx] = expert < call.num_experts ? static_cast<float>(row_logits[expert]) : 0.0f;
  }
  StoreChoice(ChooseExperts(logits, call.num_experts, call.top_k), call.top_k,
              call.per_expert_scale, call.experts + row * call.top_k,
              call.weights + row * call.top_k);
}

using Kernel = void (*)(ChooseCall);

template <typename T>
Kernel KernelFor(int num_experts) {
  constexpr int kFewPerLane = 4;
  return num_experts <= kFewPerLane * kWarpSize ? ChooseKernel<T, kFewPerLane>
                                                : ChooseKernel<T, kMaxExperts / kWarpSize>;
}

}  // namespace

void RunChoose(const LaunchContext& context, const ChooseCall& call) {
  CHECK(call.num_experts >= 1 && call.num_experts <= kMaxExperts && call.top_k >= 1 &&
        call.top_k <= std::min(call.num_experts, kMaxTopK))
      << call.top_k << " of " << call.num_experts;
  CHECK(call.dtype == DType::kF32 || call.dtype == DType::kBF16 || call.dtype == DType::kF16);
  if (call.rows == 0) return;
  const Kernel kernel = call.dtype == DType::kF32    ? KernelFor<float>(call.num_experts)
                        : call.dtype == DType::kBF16 ? KernelFor<bf16>(call.num_experts)
                                                     : KernelFor<__half>(call.num_experts);
  Launch(context, kernel, dim3((call.rows + kRowsPerBlock - 1) / kRowsPerBlock), dim3(kThreads), 0,
         call);
}

}  // namespace lapidary::cuda
