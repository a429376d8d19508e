#include "ops/cpu/moe.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/cpu/elementwise.h"

namespace lapidary::cpu {
namespace {

// Runs one matrix per expert over its group of rows: y[group] = x[group] * w[expert]^T.
//   x [assignments, in], w [experts * out, in], y [assignments, out]
void GroupedLinear(const ExpertScratch& scratch, const MatrixRef& w, const float* x, float* y,
                   ThreadPool& threads, Bf16Math bf16_math) {
  const int num_experts = static_cast<int>(scratch.expert_begin.size()) - 1;
  const int out = w.rows / num_experts;
  const int64_t in = w.cols;
  constexpr int kColumnsPerTask = 128;
  struct Task {
    int expert;
    int begin;
  };
  std::vector<Task> tasks;
  for (int expert = 0; expert < num_experts; ++expert) {
    if (scratch.expert_begin[expert] == scratch.expert_begin[expert + 1]) continue;
    for (int begin = 0; begin < out; begin += kColumnsPerTask) tasks.push_back({expert, begin});
  }
  threads.ParallelFor(static_cast<int64_t>(tasks.size()), 1, [&](int64_t first, int64_t last, int) {
    for (int64_t task_idx = first; task_idx < last; ++task_idx) {
      const Task& task = tasks[task_idx];
      const int64_t group = scratch.expert_begin[task.expert];
      const int64_t count = scratch.expert_begin[task.expert + 1] - group;
      LinearColumns(x + group * in, count, w.Rows(task.expert * out, out), task.begin,
                    std::min(task.begin + kColumnsPerTask, out), y + group * out, out, bf16_math);
    }
  });
}

void GroupByExpert(int64_t num_experts, std::span<const ExpertChoice> choices,
                   ExpertScratch& scratch) {
  scratch.expert_begin.assign(num_experts + 1, 0);
  for (const ExpertChoice& choice : choices) ++scratch.expert_begin[choice.expert + 1];
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    scratch.expert_begin[expert + 1] += scratch.expert_begin[expert];
  }
  scratch.assignment_order.resize(choices.size());
  std::vector<int> next(scratch.expert_begin.begin(), scratch.expert_begin.end() - 1);
  for (size_t idx = 0; idx < choices.size(); ++idx) {
    scratch.assignment_order[next[choices[idx].expert]++] = static_cast<int>(idx);
  }
}

}  // namespace

void MakeRouterInput(const float* h, std::span<const float> scale, float eps, float* out) {
  const int64_t hidden = static_cast<int64_t>(scale.size());
  RmsNorm(h, scale.data(), eps, hidden, out);
  Scale(out, 1.0f / std::sqrt(static_cast<float>(hidden)), hidden, out);
}

void RouteRow(std::span<float> logits, std::span<const float> per_expert_scale,
              std::span<ExpertChoice> choices) {
  // softmax over all, top-k, renormalise: the shared denominator cancels.
  ExpMinusMax(logits.data(), static_cast<int64_t>(logits.size()));
  float sum = 0.0f;
  for (ExpertChoice& choice : choices) {
    const auto best = std::max_element(logits.begin(), logits.end());  // first of equals
    choice.expert = static_cast<int>(best - logits.begin());
    choice.weight = *best;
    sum += *best;
    *best = -1.0f;
  }
  for (ExpertChoice& choice : choices) {
    choice.weight = choice.weight / sum * per_expert_scale[choice.expert];
  }
}

void RunExperts(const MatrixRef& gate_up, const MatrixRef& down, int top_k, const float* x,
                int64_t rows, std::span<const ExpertChoice> choices, ExpertScratch& scratch,
                float* out, ThreadPool& threads, Bf16Math bf16_math, const ExpertDeltas* deltas) {
  const int64_t assignments = rows * top_k;
  CHECK_EQ(static_cast<int64_t>(choices.size()), assignments);
  const int64_t hidden = gate_up.cols;
  const int64_t width = down.cols;
  const int64_t num_experts = down.rows / hidden;
  CHECK_EQ(gate_up.rows, num_experts * 2 * width);
  GroupByExpert(num_experts, choices, scratch);
  scratch.inputs.resize(assignments * hidden);
  scratch.gate_up.resize(assignments * 2 * width);
  scratch.outputs.resize(assignments * hidden);
  for (int64_t idx = 0; idx < assignments; ++idx) {
    const int64_t row = scratch.assignment_order[idx] / top_k;
    std::copy_n(x + row * hidden, hidden, scratch.inputs.data() + idx * hidden);
  }
  GroupedLinear(scratch, gate_up, scratch.inputs.data(), scratch.gate_up.data(), threads,
                bf16_math);
  if (deltas != nullptr) {
    threads.ParallelFor(assignments, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t idx = begin; idx < end; ++idx) {
        const int choice = scratch.assignment_order[idx];
        deltas->AddToGateUp(choice / top_k, choices[choice].expert,
                            scratch.inputs.data() + idx * hidden,
                            scratch.gate_up.data() + idx * 2 * width);
      }
    });
  }
  // The inputs are spent: their buffer takes the packed activations [assignments, width].
  std::vector<float>& activated = scratch.inputs;
  activated.resize(std::max(assignments * hidden, assignments * width));
  threads.ParallelFor(assignments, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t idx = begin; idx < end; ++idx) {
      float* gate = scratch.gate_up.data() + idx * 2 * width;
      GeluMul(gate, gate + width, width);
    }
  });
  for (int64_t idx = 0; idx < assignments; ++idx) {
    std::copy_n(scratch.gate_up.data() + idx * 2 * width, width, activated.data() + idx * width);
  }
  GroupedLinear(scratch, down, activated.data(), scratch.outputs.data(), threads, bf16_math);
  if (deltas != nullptr) {
    threads.ParallelFor(assignments, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t idx = begin; idx < end; ++idx) {
        const int choice = scratch.assignment_order[idx];
        deltas->AddToDown(choice / top_k, choices[choice].expert, activated.data() + idx * width,
                          scratch.outputs.data() + idx * hidden);
      }
    });
  }

  std::vector<int> slot_of(assignments);
  for (int64_t idx = 0; idx < assignments; ++idx) slot_of[scratch.assignment_order[idx]] = idx;
  threads.ParallelFor(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* sum = out + row * hidden;
      std::fill_n(sum, hidden, 0.0f);
      for (int rank = 0; rank < top_k; ++rank) {
        const int64_t assignment = row * top_k + rank;
        MulAddTo(scratch.outputs.data() + int64_t{slot_of[assignment]} * hidden,
                 choices[assignment].weight, hidden, sum);
      }
    }
  });
}

}  // namespace lapidary::cpu
