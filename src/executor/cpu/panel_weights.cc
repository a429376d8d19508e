#include "executor/cpu/panel_weights.h"

#include <vector>

#include "base/check.h"
#include "base/huge_pages.h"
#include "base/release_pages.h"
#include "tensor/panels.h"

namespace lapidary::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kLine = 64;

// The matrices that become panels.
std::vector<MatrixRef*> MatricesToRepack(const ModelPlan& plan, ModelWeights& weights) {
  std::vector<MatrixRef*> matrices;
  // `num_parts`: whose rows are used apart from each other.
  const auto add = [&](MatrixRef& matrix, int num_parts = 1) {
    if (matrix.data == nullptr || !IsBlockDType(matrix.format.unit)) return;
    if (matrix.rows / num_parts % kPanelRows == 0) matrices.push_back(&matrix);
  };
  for (LayerWeights& layer : weights.layers) {
    add(layer.attention.q_proj);
    add(layer.attention.k_proj);
    add(layer.attention.v_proj);
    add(layer.attention.o_proj);
    add(layer.mlp.gate_proj);
    add(layer.mlp.up_proj);
    add(layer.mlp.down_proj);
    add(layer.ple.gate);
    add(layer.ple.projection);
    if (!plan.moe) continue;
    add(layer.moe.gate_up_proj, plan.moe->num_experts);
    add(layer.moe.down_proj, plan.moe->num_experts);
  }
  add(weights.head);
  return matrices;
}

int64_t PanelBytes(const MatrixRef& matrix) {
  const int64_t bytes = DTypeBytes(PanelDType(matrix.format.unit), int64_t{matrix.rows} * matrix.cols);
  return (bytes + kLine - 1) / kLine * kLine;
}

}  // namespace

void PanelWeights::Repack(const ModelPlan& plan, ThreadPool& threads, ModelWeights& weights) {
  const bool is_tied = weights.head.data == weights.embedding.data;
  const std::vector<MatrixRef*> matrices = MatricesToRepack(plan, weights);
  size_t bytes = 0;
  for (const MatrixRef* matrix : matrices) bytes += PanelBytes(*matrix);
  if (bytes == 0) return;
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, bytes)));
  CHECK(memory_ != nullptr) << "out of memory";
  AdviseHugePages(memory_.get(), bytes);
  std::byte* to = memory_.get();
  for (MatrixRef* matrix : matrices) {
    const MatrixRef source = *matrix;
    threads.ParallelFor(source.rows, kPanelRows, [&](int64_t begin, int64_t end, int) {
      RepackPanels(source, begin, end, to);
    });
    *matrix = {.data = to,
               .format = FormatOf(PanelDType(source.format.unit)),
               .rows = source.rows,
               .cols = source.cols};
    to += PanelBytes(source);
    if (release_) ReleasePages(source.data, source.rows * source.row_bytes());
  }
  if (is_tied) weights.embedding = weights.head;
}

}  // namespace lapidary::cpu
