// Mixture of experts on the device: routing in f32, then the chosen experts' gated MLPs.
#pragma once

#include <cstdint>

#include "ops/cuda/launch.h"

namespace lapidary::cuda {

inline constexpr int kMaxExperts = 256;
inline constexpr int kMaxTopK = 16;

// Router input rmsnorm(h) * scale / sqrt(hidden) of the raw residual, logits and choice in f32; the
// chosen by probability (ties to the lower index), renormalised, times the expert's own scale.
// Beside it x = rmsnorm(h) * pre_norm, which the experts read.
struct RouteCall {
  int rows = 0;
  int hidden = 0;
  int num_experts = 0;
  int top_k = 0;
  float eps = 1e-6f;
  const float* h = nullptr;                 // [rows, hidden]
  const float* router_scale = nullptr;      // [hidden]
  const bf16* router_weight = nullptr;      // [experts, hidden]
  const float* per_expert_scale = nullptr;  // [experts]
  const float* pre_norm = nullptr;          // [hidden]
  int32_t* experts = nullptr;               // [rows, top_k] in rank order
  float* weights = nullptr;                 // [rows, top_k]
  bf16* x = nullptr;                        // [rows, hidden]
};
void RunRoute(const LaunchContext& context, const RouteCall& call);

// out[row] = sum over ranks, in rank order, of weight * down(gelu(gate x) * (up x)); then
//   block_out[row] = rmsnorm(block_out[row]) * post_dense_norm + rmsnorm(out[row]) *
//   post_expert_norm
// A row's result does not depend on which other rows chose the same expert.
struct ExpertsCall {
  int rows = 0;
  int hidden = 0;
  int width = 0;
  int num_experts = 0;
  int top_k = 0;
  float eps = 1e-6f;
  const int32_t* experts = nullptr;         // [rows, top_k]
  const float* weights = nullptr;           // [rows, top_k]
  const bf16* x = nullptr;                  // [rows, hidden]
  const bf16* gate_up = nullptr;            // [experts, 2 * width, hidden], gate rows first
  const bf16* down = nullptr;               // [experts, hidden, width]
  const float* post_dense_norm = nullptr;   // [hidden]
  const float* post_expert_norm = nullptr;  // [hidden]
  bf16* block_out = nullptr;                // [rows, hidden] in: the dense branch; out: the sum
  void* scratch = nullptr;                  // ExpertScratchBytes(rows, ...)
};
int64_t ExpertScratchBytes(int rows, int hidden, int width, int num_experts, int top_k);
void RunExperts(const LaunchContext& context, const ExpertsCall& call);

}  // namespace lapidary::cuda
