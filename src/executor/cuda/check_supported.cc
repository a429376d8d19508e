#include "executor/cuda/check_supported.h"

#include <algorithm>
#include <vector>

#include "ops/cuda/attention/attention.h"
#include "ops/cuda/attention/kv_entries.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/drafting/drafting.h"
#include "ops/cuda/embedding.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/sampling/sampling.h"

namespace lapidary::cuda {
namespace {

int NumRopeTables(const ModelPlan& plan) {
  std::vector<RopePlan> tables;
  for (const LayerPlan& layer : plan.layers) {
    if (std::find(tables.begin(), tables.end(), layer.rope) == tables.end()) {
      tables.push_back(layer.rope);
    }
  }
  return static_cast<int>(tables.size());
}

// The layers of a kind share one list of attention items a step: they must have the same heads.
Status CheckSameHeads(const ModelPlan& plan, const LayerPlan& layer) {
  const auto first = std::find_if(plan.layers.begin(), plan.layers.end(),
                                  [&](const LayerPlan& other) { return other.kind == layer.kind; });
  if (first->num_heads == layer.num_heads && first->num_kv_heads == layer.num_kv_heads &&
      first->window == layer.window && first->kv_entry == layer.kv_entry) {
    return {};
  }
  return MakeError("{} KV heads of {} dims, but layer {}, of {} attention too, has {} of {}",
                   layer.num_kv_heads, layer.head_dim, first->index, AttentionKindName(layer.kind),
                   first->num_kv_heads, first->head_dim);
}

Status CheckLayer(const ModelPlan& plan, const LayerPlan& layer) {
  RETURN_IF_ERROR(QueryEntrySupports(layer.head_dim));
  RETURN_IF_ERROR(AttentionSupports(layer.kv_entry, layer.heads_per_kv_head()));
  RETURN_IF_ERROR(CheckSameHeads(plan, layer));
  const auto weight = [](int rows, int cols) { return Bf16Matrix(nullptr, rows, cols); };
  const int hidden = plan.hidden_size;
  RETURN_IF_ERROR(LinearSupports(weight(layer.num_qkv_heads() * layer.head_dim, hidden)));
  RETURN_IF_ERROR(LinearSupports(weight(hidden, layer.num_heads * layer.head_dim)));
  RETURN_IF_ERROR(LinearSupports(weight(2 * layer.mlp_width, hidden)));
  return LinearSupports(weight(hidden, layer.mlp_width));
}

Status CheckKernels(const ModelPlan& plan, int max_rows) {
  RETURN_IF_ERROR(EmbedSupports(plan.hidden_size, NumRopeTables(plan)));
  RETURN_IF_ERROR(ResidualUpdateSupports(plan.hidden_size));
  for (const LayerPlan& layer : plan.layers) {
    if (const Status status = CheckLayer(plan, layer); !status.ok()) {
      return MakeError("layer {}: {}", layer.index, status.error().message);
    }
  }
  if (plan.ple) {
    RETURN_IF_ERROR(PerLayerInputsSupports(plan.ple->width));
    RETURN_IF_ERROR(LinearSupports(Bf16Matrix(nullptr, plan.hidden_size, plan.ple->width)));
  }
  if (plan.moe) {
    RETURN_IF_ERROR(MoeSupports({.rows = max_rows,
                                 .hidden = plan.hidden_size,
                                 .width = plan.moe->expert_width,
                                 .num_experts = plan.moe->num_experts,
                                 .top_k = plan.moe->top_k}));
  }
  return SamplingSupports(plan.vocab_size);
}

Status CheckAssistantKernels(const AssistantPlan& plan) {
  const ModelPlan& decoder = plan.decoder;
  RETURN_IF_ERROR(EmbedSupports(plan.backbone_hidden_size, NumRopeTables(decoder)));
  RETURN_IF_ERROR(ResidualUpdateSupports(decoder.hidden_size));
  RETURN_IF_ERROR(
      LinearSupports(Bf16Matrix(nullptr, decoder.hidden_size, 2 * plan.backbone_hidden_size)));
  for (const LayerPlan& layer : decoder.layers) RETURN_IF_ERROR(CheckLayer(decoder, layer));
  if (!plan.ordered_head) return {};
  return OrderedHeadSupports(plan.ordered_head->num_centroids, plan.ordered_head->top_k);
}

}  // namespace

Status CheckSupported(const AssistantPlan& plan) {
  const Status status = CheckAssistantKernels(plan);
  if (status.ok()) return {};
  return MakeError(
      "the assistant has {}; the CUDA kernels cannot run it, use --no-spec or --device cpu",
      status.error().message);
}

Status CheckSupported(const ModelPlan& plan, int max_rows) {
  const Status status = CheckKernels(plan, max_rows);
  if (status.ok()) return {};
  return MakeError("{}; the CUDA kernels cannot run it, use --device cpu", status.error().message);
}

}  // namespace lapidary::cuda
