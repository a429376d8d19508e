// Mixture of experts: routing, and the chosen experts' gated MLPs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu/linear.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cpu {

struct ExpertChoice {
  int expert = 0;
  float weight = 0.0f;
};

// What the router's projection reads: rmsnorm(h) * scale / sqrt(hidden), of the raw residual h.
//   h, out [hidden];  scale [hidden]
void MakeRouterInput(const float* h, std::span<const float> scale, float eps, float* out);

// The top_k experts of one row by softmax probability (ties to the lower index), in rank order;
// weights renormalised over the chosen ones, then multiplied by per_expert_scale. `logits` is
// overwritten.
void RouteRow(std::span<float> logits, std::span<const float> per_expert_scale,
              std::span<ExpertChoice> choices);

// Scratch of RunExperts, kept between steps.
struct ExpertScratch {
  std::vector<int> assignment_order;  // row * top_k + rank, grouped by expert
  std::vector<int> expert_begin;      // [num_experts + 1] into assignment_order
  std::vector<float> inputs;          // [assignments, hidden]
  std::vector<float> gate_up;         // [assignments, 2 * width]
  std::vector<float> outputs;         // [assignments, hidden]
};

// What is added to the products of experts, row by row: adapters' deltas. Called from any thread.
class ExpertDeltas {
 public:
  virtual ~ExpertDeltas() = default;
  // Of a row that chose `expert`. x [hidden], y [2 * width]: gate and up; y [hidden] of x [width].
  virtual void AddToGateUp(int64_t row, int expert, const float* x, float* y) const = 0;
  virtual void AddToDown(int64_t row, int expert, const float* x, float* y) const = 0;
};

// out[row] = sum over ranks of weight * down(gelu(gate x) * (up x)), summed in rank order: a row's
// result does not depend on which other rows chose the same expert.
//   gate_up [experts * 2 * width, hidden], gate rows of each first;  down [experts * hidden, width]
//   x, out [rows, hidden];  choices [rows, top_k];  deltas may be null
void RunExperts(const MatrixRef& gate_up, const MatrixRef& down, int top_k, const float* x,
                int64_t rows, std::span<const ExpertChoice> choices, ExpertScratch& scratch,
                float* out, ThreadPool& threads, Bf16Math bf16_math = Bf16Math::kExact,
                const ExpertDeltas* deltas = nullptr);

}  // namespace lapidary::cpu
