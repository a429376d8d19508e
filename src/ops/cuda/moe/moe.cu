// Experts in three launches after routing: gate and up of every expert over the rows that chose it,
// down, and the sum of every row's ranks in their order.
#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/moe/moe_groups.h"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kCombineThreads = 352;  // a vector of eight each of 2816
constexpr int kCombineWarps = kCombineThreads / kWarpSize;
constexpr int kVector = 8;
constexpr int kMaxVectors = 4;  // of a thread
constexpr int kRanksAtOnce = 8;

// A block per row: ranks summed in order, then both branches normed and added. A thread takes
// kVectors vectors.
template <int kVectors>
__global__ void __launch_bounds__(kCombineThreads, kVectors == 1 ? 2 : 1)
    CombineKernel(const __grid_constant__ ExpertsCall call, const bf16* outputs) {
  __shared__ float2 squares[kCombineWarps];
  const int hidden = call.shape.hidden;
  const int top_k = call.shape.top_k;
  const auto at = [](int v) {
    return (v * kCombineThreads + static_cast<int>(threadIdx.x)) * kVector;
  };
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t row = blockIdx.x;
  bf16* block_out = call.block_out + row * hidden;
  const bf16* ranks = outputs + row * top_k * hidden;
  const float* weights = call.weights + row * top_k;
  float dense[kVectors][kVector] = {};
  float sum[kVectors][kVector] = {};
  float dense_squares = 0.0f;
  float sum_squares = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (at(v) >= hidden) continue;
    Load8(block_out + at(v), dense[v]);
    for (int first_rank = 0; first_rank < top_k; first_rank += kRanksAtOnce) {
      Bf16x8 vectors[kRanksAtOnce];
      float rank_weights[kRanksAtOnce];
#pragma unroll
      for (int idx = 0; idx < kRanksAtOnce; ++idx) {
        if (first_rank + idx >= top_k) break;
        vectors[idx] = *reinterpret_cast<const Bf16x8*>(
            ranks + static_cast<int64_t>(first_rank + idx) * hidden + at(v));
        rank_weights[idx] = weights[first_rank + idx];
      }
#pragma unroll
      for (int idx = 0; idx < kRanksAtOnce; ++idx) {
        if (first_rank + idx >= top_k) break;
        float values[kVector];
        Unpack(vectors[idx], values);
#pragma unroll
        for (int part = 0; part < kVector; ++part) {
          sum[v][part] = __fmaf_rn(rank_weights[idx], values[part], sum[v][part]);
        }
      }
    }
#pragma unroll
    for (int part = 0; part < kVector; ++part) {
      sum_squares = __fmaf_rn(sum[v][part], sum[v][part], sum_squares);
      dense_squares = __fmaf_rn(dense[v][part], dense[v][part], dense_squares);
    }
  }
  float dense_norm[kVectors][kVector] = {};
  float expert_norm[kVectors][kVector] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (at(v) >= hidden) continue;
#pragma unroll
    for (int part = 0; part < kVector; part += 4) {
      *reinterpret_cast<float4*>(dense_norm[v] + part) =
          *reinterpret_cast<const float4*>(call.post_dense_norm + at(v) + part);
      *reinterpret_cast<float4*>(expert_norm[v] + part) =
          *reinterpret_cast<const float4*>(call.post_expert_norm + at(v) + part);
    }
  }
  sum_squares = WarpSum(sum_squares);
  dense_squares = WarpSum(dense_squares);
  if (threadIdx.x % kWarpSize == 0) {
    squares[threadIdx.x / kWarpSize] = {sum_squares, dense_squares};
  }
  __syncthreads();
  float2 totals = {0.0f, 0.0f};
#pragma unroll
  for (int warp = 0; warp < kCombineWarps; ++warp) {
    totals.x += squares[warp].x;
    totals.y += squares[warp].y;
  }
  const float dim = static_cast<float>(hidden);
  const float sum_inverse = rsqrtf(totals.x / dim + call.eps);
  const float dense_inverse = rsqrtf(totals.y / dim + call.eps);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (at(v) >= hidden) continue;
    float values[kVector];
#pragma unroll
    for (int part = 0; part < kVector; ++part) {
      values[part] = __fmaf_rn(dense[v][part] * dense_inverse, dense_norm[v][part],
                               sum[v][part] * sum_inverse * expert_norm[v][part]);
    }
    Store8(block_out + at(v), values);
  }
}

}  // namespace

void RunExperts(const LaunchContext& context, const ExpertsCall& call) {
  const MoeShape& shape = call.shape;
  CHECK_OK(MoeSupports(shape));
  const MoeScratch scratch(shape, call.scratch);
  const bool is_few = call.plan.kernel == GroupPlan::Kernel::kFewRows;
  const auto run_product = is_few                                             ? RunFewRowsProduct
                           : call.plan.kernel == GroupPlan::Kernel::kPortable ? RunPortableProduct
                                                                              : RunHopperProduct;
  GroupProduct product{};
  product.order = scratch.order;
  product.groups = scratch.groups;
  product.num_groups = scratch.num_groups;
  product.experts = call.experts;
  product.num_choices = shape.rows * shape.top_k;
  product.top_k = shape.top_k;
  product.rows_per_group = call.plan.rows;
  product.in_pairs = call.plan.in_pairs;
  product.num_experts = shape.num_experts;
  product.max_groups = is_few ? product.num_choices : MaxRowGroups(shape, call.plan);
  product.weight = Bf16Values(call.gate_up, shape.num_experts * 2 * shape.width, shape.hidden);
  product.in = call.x;
  product.out = scratch.act;
  product.in_dim = shape.hidden;
  product.out_dim = shape.width;
  run_product(context, product, true);

  product.weight = Bf16Values(call.down, shape.num_experts * shape.hidden, shape.width);
  product.in = scratch.act;
  product.out = scratch.outputs;
  product.in_dim = shape.width;
  product.out_dim = shape.hidden;
  run_product(context, product, false);

  static_assert(kMaxMoeHidden == kMaxVectors * kCombineThreads * kVector);
  const auto combine =
      shape.hidden <= kCombineThreads * kVector ? CombineKernel<1> : CombineKernel<kMaxVectors>;
  LaunchContext last = context;
  if (call.dense_done != nullptr) {
    LAPIDARY_CUDA_CHECK(cudaStreamWaitEvent(context.stream, call.dense_done, 0));
    last.dependent = false;  // of one kernel, where there are two to wait for
  }
  Launch(last, combine, dim3(shape.rows), dim3(kCombineThreads), 0, call, scratch.outputs);
}

}  // namespace lapidary::cuda
