#include "model/footprint.h"

#include "model/tensor_specs.h"

namespace lapidary {
namespace {

void AddTensor(TensorComponent component, int64_t size, Footprint& footprint) {
  switch (component) {
    case TensorComponent::kEmbedding:
      footprint.embedding += size;
      break;
    case TensorComponent::kHead:
      footprint.head += size;
      break;
    case TensorComponent::kPerLayerEmbedding:
      footprint.per_layer_embedding += size;
      break;
    case TensorComponent::kPerLayerProjection:
      footprint.per_layer_projection += size;
      break;
    case TensorComponent::kExperts:
      footprint.experts += size;
      break;
    case TensorComponent::kFinalNorm:
      footprint.final_norm += size;
      break;
    case TensorComponent::kAttention:
    case TensorComponent::kMlp:
    case TensorComponent::kLayerOther:
      footprint.layers += size;
      break;
    case TensorComponent::kTower:
      break;  // The decoder has none.
  }
}

// What follows from the sizes of all tensors.
void AddReads(const ModelPlan& plan, Footprint& footprint) {
  footprint.read_per_token = footprint.total() - footprint.per_layer_embedding;
  if (plan.has_own_head) footprint.read_per_token -= footprint.embedding;
  if (plan.moe) {
    footprint.read_per_token -=
        footprint.experts / plan.moe->num_experts * (plan.moe->num_experts - plan.moe->top_k);
  }
  footprint.gathered_per_token = footprint.embedding / plan.vocab_size;
  if (plan.ple) {
    footprint.gathered_per_token += footprint.per_layer_embedding / plan.ple->vocab_size;
  }
}

}  // namespace

Footprint MakeFootprint(const ModelPlan& plan) {
  Footprint footprint;
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    AddTensor(spec.component, spec.num_elements(), footprint);
  }
  for (const TensorSpec& spec : UnusedSharedKvTensors(plan)) {
    footprint.unused_shared_kv += spec.num_elements();
  }
  AddReads(plan, footprint);
  return footprint;
}

Footprint MakeFootprint(const ModelPlan& plan, const WeightPlan& weights) {
  Footprint footprint;
  for (const PlannedWeight& weight : weights.weights()) {
    AddTensor(weight.spec.component, weight.is_matrix() ? weight.loaded_bytes : weight.stored_bytes,
              footprint);
  }
  AddReads(plan, footprint);
  return footprint;
}

}  // namespace lapidary
