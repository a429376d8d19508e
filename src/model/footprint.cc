#include "model/footprint.h"

#include "model/tensor_specs.h"

namespace lapidary {

Footprint MakeFootprint(const ModelPlan& plan) {
  Footprint footprint;
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    const int64_t count = spec.num_elements();
    switch (spec.component) {
      case TensorComponent::kEmbedding:
        footprint.embedding += count;
        break;
      case TensorComponent::kHead:
        footprint.head += count;
        break;
      case TensorComponent::kPerLayerEmbedding:
        footprint.per_layer_embedding += count;
        break;
      case TensorComponent::kPerLayerProjection:
        footprint.per_layer_projection += count;
        break;
      case TensorComponent::kExperts:
        footprint.experts += count;
        break;
      case TensorComponent::kFinalNorm:
        footprint.final_norm += count;
        break;
      case TensorComponent::kAttention:
      case TensorComponent::kMlp:
      case TensorComponent::kLayerOther:
        footprint.layers += count;
        break;
      case TensorComponent::kTower:
        break;  // The decoder has none.
    }
  }
  for (const TensorSpec& spec : UnusedSharedKvTensors(plan)) {
    footprint.unused_shared_kv += spec.num_elements();
  }
  footprint.read_per_token = footprint.total() - footprint.per_layer_embedding;
  if (plan.has_own_head) footprint.read_per_token -= footprint.embedding;
  if (plan.moe) {
    footprint.read_per_token -=
        footprint.experts / plan.moe->num_experts * (plan.moe->num_experts - plan.moe->top_k);
  }
  footprint.gathered_per_token =
      plan.hidden_size + (plan.ple ? int64_t{plan.num_layers} * plan.ple->width : 0);
  return footprint;
}

}  // namespace lapidary
