#include "base/check.h"
#include "ops/cuda/drafting/likeliest.cuh"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kQuadsPerThread = 4;
constexpr int kTokensPerBlock = kThreads * kQuadsPerThread * 4;

__global__ void __launch_bounds__(kThreads)
    LikeliestKernel(const __grid_constant__ LikeliestCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t row = blockIdx.y;
  const float* logits = call.logits + row * call.vocab_size;
  unsigned long long best = 0;
#pragma unroll
  for (int idx = 0; idx < kQuadsPerThread; ++idx) {
    const int first = blockIdx.x * kTokensPerBlock + (idx * kThreads + threadIdx.x) * 4;
    if (first + 4 <= call.vocab_size && call.vocab_size % 4 == 0) {
      const float4 quad = *reinterpret_cast<const float4*>(logits + first);
      best = max(max(best, TokenKey(quad.x, first)), TokenKey(quad.y, first + 1));
      best = max(max(best, TokenKey(quad.z, first + 2)), TokenKey(quad.w, first + 3));
    } else {
      for (int id = first; id < min(first + 4, call.vocab_size); ++id) {
        best = max(best, TokenKey(logits[id], id));
      }
    }
  }
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    best = max(best, __shfl_xor_sync(0xffffffffu, best, offset));
  }
  StoreLikeliest<kThreads / kWarpSize>(best, call.winner, call.draft, static_cast<int>(row),
                                       static_cast<int>(gridDim.x));
}

}  // namespace

void RunLikeliest(const LaunchContext& context, const LikeliestCall& call) {
  const int blocks = (call.vocab_size + kTokensPerBlock - 1) / kTokensPerBlock;
  Launch(context, LikeliestKernel, dim3(blocks, call.rows), dim3(kThreads), 0, call);
}

}  // namespace lapidary::cuda
