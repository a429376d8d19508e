#include "base/check.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/row_norm.cuh"

namespace lapidary::cuda {
namespace {

// One block per row; a thread holds kQuads groups of four values. Everything is asked for at once,
// the weights before the previous kernel has ended.
template <int kQuads>
__global__ void __launch_bounds__(kNormThreads)
    ResidualUpdateKernel(const ResidualUpdate update, int dim, bf16* x) {
  __shared__ float scratch[2][kNormWarps];
  AllowNextKernel();
  const int64_t row_start = static_cast<int64_t>(blockIdx.x) * dim;
  const int num_quads = dim / 4;
  const bool adds = update.block_out != nullptr;
  const bool norms = x != nullptr && update.pre_norm != nullptr;
  const auto* hidden = reinterpret_cast<const float4*>(update.hidden + row_start);
  const auto* block_out = reinterpret_cast<const uint2*>(update.block_out + row_start);
  const auto* post_norm = reinterpret_cast<const float4*>(update.post_norm);
  const auto* pre_norm = reinterpret_cast<const float4*>(update.pre_norm);

  float4 post[kQuads], pre[kQuads], h[kQuads], addend[kQuads];
#pragma unroll
  for (int n = 0; n < kQuads; ++n) {
    const int i = threadIdx.x + n * kNormThreads;
    post[n] = pre[n] = h[n] = addend[n] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (i < num_quads && adds) post[n] = __ldg(post_norm + i);
    if (i < num_quads && norms) pre[n] = __ldg(pre_norm + i);
  }
  WaitForPreviousKernel();
#pragma unroll
  for (int n = 0; n < kQuads; ++n) {
    const int i = threadIdx.x + n * kNormThreads;
    if (i < num_quads && adds) addend[n] = UnpackBf16x4(__ldcg(block_out + i));
    if (i < num_quads) h[n] = __ldcg(hidden + i);
  }

  if (adds) {
    AddNormedRow(h, addend, post, update.scale, dim, update.eps, scratch[0]);
  } else {
#pragma unroll
    for (int n = 0; n < kQuads; ++n) h[n] = Updated(h[n], addend[n], update.scale);
  }
  if (update.hidden_out != nullptr) {
#pragma unroll
    for (int n = 0; n < kQuads; ++n) {
      const int i = threadIdx.x + n * kNormThreads;
      if (i < num_quads) reinterpret_cast<float4*>(update.hidden_out + row_start)[i] = h[n];
    }
  }
  if (x == nullptr) return;

  if (norms) NormRow(h, pre, dim, update.eps, scratch[1]);
#pragma unroll
  for (int n = 0; n < kQuads; ++n) {
    const int i = threadIdx.x + n * kNormThreads;
    if (i < num_quads) reinterpret_cast<uint2*>(x + row_start)[i] = PackBf16x4(h[n]);
  }
}

}  // namespace

void RunResidualUpdate(const LaunchContext& context, const ResidualUpdate& update, int rows,
                       int dim, bf16* x) {
  CHECK_OK(ResidualUpdateSupports(dim));
  CHECK_GE(rows, 1);
  CHECK(update.hidden != nullptr && update.hidden != update.hidden_out);
  CHECK(update.block_out == nullptr || update.post_norm != nullptr);
  const int quads = (dim + 4 * kNormThreads - 1) / (4 * kNormThreads);
  static_assert(kMaxResidualDim == 12 * 4 * kNormThreads);
  const auto kernel = quads <= 1   ? ResidualUpdateKernel<1>
                      : quads <= 2 ? ResidualUpdateKernel<2>
                      : quads <= 3 ? ResidualUpdateKernel<3>
                      : quads <= 4 ? ResidualUpdateKernel<4>
                      : quads <= 6 ? ResidualUpdateKernel<6>
                                   : ResidualUpdateKernel<12>;
  Launch(context, kernel, dim3(rows), dim3(kNormThreads), 0, update, dim, x);
}

}  // namespace lapidary::cuda
