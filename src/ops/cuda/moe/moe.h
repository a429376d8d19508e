// Mixture of experts on the device: routing in f32, then the chosen experts' gated MLPs.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/moe/moe_scratch.h"
#include "tensor/dtype.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cuda {

inline constexpr int kMaxTopK = 16;
inline constexpr int kMaxMoeHidden = 11264;

// Of routing and experts; shape.rows is the most of any call.
Status MoeSupports(const MoeShape& shape);

// Router input rmsnorm(h) * scale / sqrt(hidden) of the raw residual, logits and choice in f32; the
// chosen by probability (ties to the lower index), renormalised, times the expert's own scale.
// Beside it x = rmsnorm(h) * pre_norm, which the experts read, and in scratch the rows by expert.
struct RouteCall {
  MoeShape shape;
  GroupPlan plan;
  float eps = 1e-6f;
  const float* h = nullptr;                 // [rows, hidden]
  const float* router_scale = nullptr;      // [hidden]
  MatrixRef router_weight;                  // [experts, hidden]
  const float* per_expert_scale = nullptr;  // [experts]
  const float* pre_norm = nullptr;          // [hidden]
  int32_t* experts = nullptr;               // [rows, top_k] in rank order
  float* weights = nullptr;                 // [rows, top_k]
  bf16* x = nullptr;                        // [rows, hidden]
  void* scratch = nullptr;                  // ExpertScratchBytes
  int32_t* counters = nullptr;              // [kRouteCounters] zeros, which every call leaves so
  // Another stream's kernels wait for the rows as well: they shall find room before the experts'
  // blocks do, which have nothing to do until routing ends.
  bool leaves_room = false;
};
void RunRoute(const LaunchContext& context, const RouteCall& call);

// The choice alone, from logits that are there already: as in RunRoute, but the expert's own scale
// may be missing. NaN counts as -inf.
struct ChooseCall {
  int rows = 0;
  int num_experts = 0;
  int top_k = 0;                            // at most num_experts and kMaxTopK
  DType dtype = DType::kF32;                // or bf16, or f16
  const void* logits = nullptr;             // [rows, num_experts]
  const float* per_expert_scale = nullptr;  // [num_experts]; null: 1
  int32_t* experts = nullptr;               // [rows, top_k] in rank order
  float* weights = nullptr;                 // [rows, top_k]
};
void RunChoose(const LaunchContext& context, const ChooseCall& call);

// Only the last part of RunRoute: scratch for a choice [rows, top_k] that is already there. Few
// rows (GroupPlan) need none.
void RunGroupRows(const LaunchContext& context, const MoeShape& shape, const GroupPlan& plan,
                  const int32_t* experts, void* scratch);

// out[row] = sum over ranks, in rank order, of weight * down(gelu(gate x) * (up x)); then
//   block_out[row] = rmsnorm(block_out[row]) * post_dense_norm + rmsnorm(out[row]) *
//   post_expert_norm
// A row's bits depend neither on which other rows chose the same expert nor on how many rows
// there are, nor on the plan.
struct ExpertsCall {
  MoeShape shape;
  GroupPlan plan;  // as for routing
  float eps = 1e-6f;
  const int32_t* experts = nullptr;        // [rows, top_k]
  const float* weights = nullptr;          // [rows, top_k]
  const bf16* x = nullptr;                 // [rows, hidden]
  MatrixRef gate_up;                       // [experts * 2 * width, hidden], gate rows of each first
  MatrixRef down;                          // [experts * hidden, width]
  const float* post_dense_norm = nullptr;  // [hidden]
  const float* post_expert_norm = nullptr;  // [hidden]
  bf16* block_out = nullptr;                // [rows, hidden] in: the dense branch; out: the sum
  cudaEvent_t dense_done = nullptr;         // when that is there; null: it is
  void* scratch = nullptr;                  // as RunRoute left it
};
void RunExperts(const LaunchContext& context, const ExpertsCall& call);

}  // namespace lapidary::cuda
