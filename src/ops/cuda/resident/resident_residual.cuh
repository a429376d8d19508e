// The residual stream of a resident step: every block has a copy of it in shared memory, and brings
// it up to date for itself from what the blocks send each other.
#pragma once

#include <cstdint>

#include "ops/cuda/resident/resident_digits.cuh"
#include "ops/cuda/resident/resident_exchange.cuh"
#include "ops/cuda/resident/resident_state.cuh"
#include "ops/cuda/row_norm.cuh"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {

__device__ __forceinline__ float SumOfWarps(const float* sums) {
  const auto* quads = reinterpret_cast<const float4*>(sums);
  const float4 low = quads[0];
  const float4 high = quads[1];
  return SumInPairs({low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w});
}

// The sum over all workers, the same in each.
__device__ __forceinline__ float SumOverWorkers(int thread, float value, float* scratch) {
  value = WarpSum(value);
  if (thread % 32 == 0) scratch[thread / 32] = value;
  SyncWorkers();
  return SumOfWarps(scratch);
}
// Two sums at once.
__device__ __forceinline__ float2 SumsOverWorkers(int thread, float2 values, float* first_scratch,
                                                  float* second_scratch) {
  values.x = WarpSum(values.x);
  values.y = WarpSum(values.y);
  if (thread % 32 == 0) {
    first_scratch[thread / 32] = values.x;
    second_scratch[thread / 32] = values.y;
  }
  SyncWorkers();
  return {SumOfWarps(first_scratch), SumOfWarps(second_scratch)};
}

static_assert(kResidentWorkers == kNormThreads);  // ForEachQuad

// Fast, not with the bits of other kernels: each block waits for it.
__device__ __forceinline__ float QuickInverseRms(float sum_of_squares, int dim, float eps) {
  return rsqrtf(__fdividef(sum_of_squares, static_cast<float>(dim)) + eps);
}

// A row of input for weights in `format`: quad number `quad`, the thread's number `idx`, is
// make(idx, quad).
template <int kQuads, bool kTiled, typename Make>
__device__ __forceinline__ void StoreRow(std::byte* input, TileType format, int num_quads,
                                         const Make& make) {
  const int thread = ThreadOfPhase();
  if (kTiled && format != TileType::kBf16) {
    float4 values[kQuads] = {};
    ForEachQuad<kQuads>(thread, num_quads,
                        [&](int idx, int quad) { values[idx] = make(idx, quad); });
    StoreDigits<kQuads>(input, format, thread, kResidentWorkers, num_quads, values);
  } else {
    ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int quad) {
      StoreInput(input, quad, PackBf16x4(make(idx, quad)));
    });
  }
}

// ResidualUpdate of linear.h; the residual stream stays in shared memory, a copy in every block.
// Each thread reads only what it wrote. `number`: of the packets.
template <int kQuads, bool kTiled>
__device__ __forceinline__ void UpdateResidual(const ResidentPhase& phase, uint32_t number) {
  const int thread = ThreadOfPhase();
  auto* hidden = Hidden();
  const int dim = phase.matrix.in_dim;
  const int num_quads = dim / 4;
  const uint64_t* packets = phase.input;
  const float* pre_norm = phase.pre_norm;
  // On their way while we wait for the packets. (Set, even where they are not read: what a branch
  // leaves undefined would be kept in registers through all phases.)
  float4 post[kQuads] = {};
  float4 pre[kQuads] = {};
  ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int quad) {
    if (packets != nullptr) {
      post[idx] = __ldg(reinterpret_cast<const float4*>(phase.post_norm) + quad);
    }
    if (pre_norm != nullptr) pre[idx] = __ldg(reinterpret_cast<const float4*>(pre_norm) + quad);
  });
  float inverse_rms = 0.0f;
  uint2 out[kQuads] = {};
  if (packets != nullptr) {
    ReceiveQuads<kQuads>(packets, thread, kResidentWorkers, num_quads, number, out);
    float squares = 0.0f;
    ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int) {
      squares = AddSquares(squares, UnpackBf16x4(out[idx]));
    });
    inverse_rms = QuickInverseRms(SumOverWorkers(thread, squares, State().block_sums[0]), dim,
                                  State().params.call.eps);
  }
  float squares = 0.0f;
  ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int quad) {
    float4 h = hidden[quad];
    if (packets != nullptr) {
      h = Updated(h, Normed(UnpackBf16x4(out[idx]), inverse_rms, post[idx]), phase.scale);
      hidden[quad] = h;
    }
    squares = AddSquares(squares, h);
  });
  if (pre_norm != nullptr) {
    inverse_rms = QuickInverseRms(SumOverWorkers(thread, squares, State().block_sums[1]), dim,
                                  State().params.call.eps);
  }
  StoreRow<kQuads, kTiled>(Input(), phase.matrix.format, num_quads, [&](int idx, int quad) {
    const float4 h = hidden[quad];
    return pre_norm != nullptr ? Normed(h, inverse_rms, pre[idx]) : h;
  });
}

__device__ __forceinline__ float4 LoadQuad(const float* values, int quad) {
  return __ldg(reinterpret_cast<const float4*>(values) + quad);
}

// What experts and dense branch have made, each normed, and their sum: `addend`.
template <int kQuads>
__device__ __forceinline__ void JoinBranches(const ResidentPhase& phase,
                                             const ResidentExperts& experts, uint32_t number,
                                             float4 (&addend)[kQuads]) {
  const int thread = ThreadOfPhase();
  const int dim = phase.matrix.in_dim;
  const int num_quads = dim / 4;
  float4 dense_norm[kQuads] = {};
  float4 expert_norm[kQuads] = {};
  ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int quad) {
    dense_norm[idx] = LoadQuad(experts.post_dense_norm, quad);
    expert_norm[idx] = LoadQuad(experts.post_expert_norm, quad);
  });
  uint2 dense[kQuads] = {};
  uint2 expert[kQuads] = {};
  ReceiveQuads<kQuads>(experts.dense, thread, kResidentWorkers, num_quads,
                       number + 1 - kPhasesToJoin, dense);
  ReceiveQuads<kQuads>(phase.input, thread, kResidentWorkers, num_quads, number, expert);
  float2 squares = {};
  ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int) {
    squares.x = AddSquares(squares.x, UnpackBf16x4(dense[idx]));
    squares.y = AddSquares(squares.y, UnpackBf16x4(expert[idx]));
  });
  ResidentExpertState& state = ExpertState();
  squares = SumsOverWorkers(thread, squares, state.sums[0], state.sums[1]);
  const float eps = State().params.call.eps;
  const float dense_rms = QuickInverseRms(squares.x, dim, eps);
  const float expert_rms = QuickInverseRms(squares.y, dim, eps);
  ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int) {
    addend[idx] = Updated(Normed(UnpackBf16x4(dense[idx]), dense_rms, dense_norm[idx]),
                          Normed(UnpackBf16x4(expert[idx]), expert_rms, expert_norm[idx]), 1.0f);
  });
}

// UpdateResidual in a model with experts, a function of its own so that the kernels of other models
// keep their registers. The phase may join the last layer's branches, or be the
// one that makes the router's logits, a block that of one expert, and the experts' input.
template <int kQuads, bool kTiled>
__device__ __forceinline__ void UpdateResidualWithExperts(const ResidentPhase& phase,
                                                          const ResidentExperts& experts,
                                                          uint32_t number) {
  const int thread = ThreadOfPhase();
  auto* hidden = Hidden();
  const int dim = phase.matrix.in_dim;
  const int num_quads = dim / 4;
  const float eps = State().params.call.eps;
  const bool routes = experts.router != nullptr;
  const bool makes_logit = routes && blockIdx.x < State().program.num_experts;
  // As in UpdateResidual.
  float4 post[kQuads] = {};
  float4 pre[kQuads] = {};
  float4 expert_pre[kQuads] = {};
  float4 router_scale[kQuads] = {};
  uint2 router[kQuads] = {};
  ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int quad) {
    if (phase.input != nullptr) post[idx] = LoadQuad(phase.post_norm, quad);
    pre[idx] = LoadQuad(phase.pre_norm, quad);
    if (routes) expert_pre[idx] = LoadQuad(experts.pre_norm, quad);
    if (makes_logit) {
      router_scale[idx] = LoadQuad(experts.router_scale, quad);
      router[idx] =
          __ldg(reinterpret_cast<const uint2*>(experts.router + int64_t{blockIdx.x} * dim) + quad);
    }
  });
  float4 addend[kQuads] = {};
  float post_rms = 0.0f;
  if (phase.input != nullptr) {
    if (experts.dense != nullptr) {
      JoinBranches(phase, experts, number, addend);
    } else {
      uint2 out[kQuads] = {};
      ReceiveQuads<kQuads>(phase.input, thread, kResidentWorkers, num_quads, number, out);
      ForEachQuad<kQuads>(thread, num_quads,
                          [&](int idx, int) { addend[idx] = UnpackBf16x4(out[idx]); });
    }
    float squares = 0.0f;
    ForEachQuad<kQuads>(thread, num_quads,
                        [&](int idx, int) { squares = AddSquares(squares, addend[idx]); });
    post_rms = QuickInverseRms(SumOverWorkers(thread, squares, State().block_sums[0]), dim, eps);
  }
  // Squares, and the row times the router's.
  float2 sums = {};
  ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int quad) {
    float4 h = hidden[quad];
    if (phase.input != nullptr) {
      h = Updated(h, Normed(addend[idx], post_rms, post[idx]), phase.scale);
      hidden[quad] = h;
    }
    sums.x = AddSquares(sums.x, h);
    const float4 weight = UnpackBf16x4(router[idx]);
    sums.y = fmaf(h.x * router_scale[idx].x, weight.x, sums.y);
    sums.y = fmaf(h.y * router_scale[idx].y, weight.y, sums.y);
    sums.y = fmaf(h.z * router_scale[idx].z, weight.z, sums.y);
    sums.y = fmaf(h.w * router_scale[idx].w, weight.w, sums.y);
  });
  ResidentExpertState& state = ExpertState();
  sums = SumsOverWorkers(thread, sums, State().block_sums[1], state.sums[0]);
  const float inverse_rms = QuickInverseRms(sums.x, dim, eps);
  if (makes_logit && thread == 0) {
    const float logit = sums.y * inverse_rms * rsqrtf(static_cast<float>(dim));
    SendPacket(experts.logits + blockIdx.x, __float_as_uint(logit), number + 1);
  }
  StoreRow<kQuads, kTiled>(Input(), phase.matrix.format, num_quads, [&](int idx, int quad) {
    return Normed(hidden[quad], inverse_rms, pre[idx]);
  });
  if (!routes) return;
  StoreRow<kQuads, kTiled>(state.input(), phase.expert_format, num_quads, [&](int idx, int quad) {
    return Normed(hidden[quad], inverse_rms, expert_pre[idx]);
  });
}

}  // namespace lapidary::cuda
