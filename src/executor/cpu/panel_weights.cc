#include "executor/cpu/panel_weights.h"

#include "base/huge_pages.h"
#include "base/release_pages.h"
#include "ops/cpu/panels.h"

namespace lapidary::cpu {

MatrixRef PanelWeights::Panels(const MatrixRef& matrix, int64_t unit, ThreadPool& threads) {
  if (matrix.data == nullptr || !IsBlockDType(matrix.dtype) || unit % kPanelRows != 0) {
    return matrix;
  }
  const DType dtype = PanelTypeOf(matrix.dtype);
  const int64_t bytes = DTypeBytes(dtype, int64_t{matrix.rows} * matrix.cols);
  auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  AdviseHugePages(memory.get(), bytes);
  threads.ParallelFor(matrix.rows, kPanelRows, [&](int64_t begin, int64_t end, int) {
    RepackPanels(matrix, begin, end, memory.get());
  });
  const MatrixRef panels{
      .data = memory.get(), .dtype = dtype, .rows = matrix.rows, .cols = matrix.cols};
  memory_.push_back(std::move(memory));
  if (release_) ReleasePages(matrix.data, matrix.rows * matrix.row_bytes());
  return panels;
}

void PanelWeights::Repack(const ModelPlan& plan, ThreadPool& threads, ModelWeights& weights) {
  const auto repack = [&](MatrixRef& matrix) { matrix = Panels(matrix, matrix.rows, threads); };
  const auto repack_experts = [&](MatrixRef& matrix) {
    matrix = Panels(matrix, matrix.rows / plan.moe->num_experts, threads);
  };
  for (LayerWeights& layer : weights.layers) {
    repack(layer.attention.q_proj);
    repack(layer.attention.k_proj);
    repack(layer.attention.v_proj);
    repack(layer.attention.o_proj);
    repack(layer.mlp.gate_proj);
    repack(layer.mlp.up_proj);
    repack(layer.mlp.down_proj);
    repack(layer.ple.gate);
    repack(layer.ple.projection);
    if (!plan.moe) continue;
    repack_experts(layer.moe.gate_up_proj);
    repack_experts(layer.moe.down_proj);
  }
  const bool is_tied = weights.head.data == weights.embedding.data;
  repack(weights.head);
  if (is_tied) weights.embedding = weights.head;
}

}  // namespace lapidary::cpu
