#include "base/check.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/row_norm.cuh"

namespace lapidary::cuda {
namespace {

// One block per row. Shared memory: the row after the update, f32 [dim]; each thread reads back
// only what it wrote.
__global__ void __launch_bounds__(kNormThreads)
    ResidualUpdateKernel(const ResidualUpdate update, int dim, bf16* x) {
  extern __shared__ float4 updated_row[];
  __shared__ float scratch[2][kNormWarps];
  AllowNextKernel();
  WaitForPreviousKernel();

  const int64_t row_start = static_cast<int64_t>(blockIdx.x) * dim;
  const int num_quads = dim / 4;
  const auto* hidden = reinterpret_cast<const float4*>(update.hidden + row_start);
  const auto* block_out = reinterpret_cast<const uint2*>(update.block_out + row_start);
  const auto* post_norm = reinterpret_cast<const float4*>(update.post_norm);
  const auto* pre_norm = reinterpret_cast<const float4*>(update.pre_norm);

  float inverse_rms = 0.0f;
  if (update.block_out != nullptr) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < num_quads; i += kNormThreads) {
      sum = AddSquares(sum, UnpackBf16x4(__ldcg(block_out + i)));
    }
    inverse_rms = InverseRms(BlockSum(sum, scratch[0]), dim, update.eps);
  }

  float sum = 0.0f;
  for (int i = threadIdx.x; i < num_quads; i += kNormThreads) {
    float4 h = __ldcg(hidden + i);
    float4 addend = {0.0f, 0.0f, 0.0f, 0.0f};
    if (update.block_out != nullptr) {
      addend = Normed(UnpackBf16x4(__ldcg(block_out + i)), inverse_rms, __ldg(post_norm + i));
    }
    h = Updated(h, addend, update.scale);
    if (update.hidden_out != nullptr) {
      reinterpret_cast<float4*>(update.hidden_out + row_start)[i] = h;
    }
    sum = AddSquares(sum, h);
    updated_row[i] = h;
  }
  if (x == nullptr) return;

  inverse_rms = InverseRms(BlockSum(sum, scratch[1]), dim, update.eps);
  for (int i = threadIdx.x; i < num_quads; i += kNormThreads) {
    float4 h = updated_row[i];
    if (update.pre_norm != nullptr) h = Normed(h, inverse_rms, __ldg(pre_norm + i));
    reinterpret_cast<uint2*>(x + row_start)[i] = PackBf16x4(h);
  }
}

}  // namespace

void RunResidualUpdate(const LaunchContext& context, const ResidualUpdate& update, int rows,
                       int dim, bf16* x) {
  CHECK(rows > 0 && dim > 0 && dim % 8 == 0) << rows << " rows of " << dim;
  CHECK(update.hidden != nullptr && update.hidden != update.hidden_out);
  CHECK(update.block_out == nullptr || update.post_norm != nullptr);
  const size_t shared_bytes = static_cast<size_t>(dim) * sizeof(float);
  CHECK_LE(shared_bytes, 48 * 1024);
  Launch(context, ResidualUpdateKernel, dim3(rows), dim3(kNormThreads), shared_bytes, update, dim,
         x);
}

}  // namespace lapidary::cuda
