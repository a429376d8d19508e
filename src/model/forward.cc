#include "model/forward.h"

namespace lapidary {
namespace {

void RunLayer(const ModelPlan& plan, const LayerPlan& layer, bool reduces, ForwardOps& ops) {
  ops.ProjectAttention(layer);
  ops.Attend(layer);
  ops.AttentionOutput(layer);
  if (reduces) ops.AllReduce(PartialSum::kBlock);
  ops.AddAttention(layer);
  ops.DenseMlp(layer);
  if (layer.has_moe) ops.Experts(layer);
  if (reduces) ops.AllReduce(layer.has_moe ? PartialSum::kBlockAndExperts : PartialSum::kBlock);
  if (layer.has_moe) ops.JoinExperts(layer);
  ops.MlpOutput(layer);
  if (plan.ple) ops.PerLayerGate(layer);
}

// The last layer that reads `owner`'s KV: its own index unless others share it.
int LastReader(const ModelPlan& plan, int owner) {
  for (int layer_idx = plan.num_layers - 1; layer_idx > owner; --layer_idx) {
    if (plan.layers[layer_idx].kv_layer == owner) return layer_idx;
  }
  return owner;
}

}  // namespace

void RunDecoder(const ModelPlan& plan, bool skip_unneeded_rows, int num_ranks, ForwardOps& ops) {
  const bool reduces = num_ranks > 1;
  ops.Embed();
  if (reduces) ops.AllReduce(PartialSum::kEmbedding);
  if (plan.ple) ops.MakePerLayerInputs();
  for (const LayerPlan& layer : plan.layers) {
    // Layers that share KV write none: what they compute for a row matters to that row's output
    // alone.
    if (skip_unneeded_rows && layer.index == plan.first_kv_shared_layer) ops.KeepOutputRows();
    RunLayer(plan, layer, reduces, ops);
    const LayerPlan& owner = plan.layers[layer.kv_layer];
    if (LastReader(plan, owner.index) == layer.index) ops.StoreKv(owner);
  }
  if (!skip_unneeded_rows || !plan.has_kv_sharing()) ops.KeepOutputRows();
  ops.Head();
}

}  // namespace lapidary
