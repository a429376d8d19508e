#include "model/tensor_specs.h"

#include <fmt/format.h>

namespace lapidary {
namespace {

class SpecList {
 public:
  void Add(std::string name, std::vector<int64_t> shape, TensorComponent component,
           TensorRole role) {
    specs_.push_back({std::move(name), std::move(shape), component, role, layer_});
  }
  void BeginLayer(int layer_idx) { layer_ = layer_idx; }
  void EndLayers() { layer_ = -1; }
  void AddLayer(const char* name, std::vector<int64_t> shape, TensorComponent component,
                TensorRole role) {
    Add(fmt::format("layers.{}.{}", layer_, name), std::move(shape), component, role);
  }
  std::vector<TensorSpec> Take() { return std::move(specs_); }

 private:
  std::vector<TensorSpec> specs_;
  int layer_ = -1;
};

using enum TensorComponent;
using TensorRole::kMatrix;
using TensorRole::kNorm;
using TensorRole::kQkNorm;
using TensorRole::kRouter;
using TensorRole::kScale;
using TensorRole::kTable;

void AddKv(const LayerPlan& layer, int64_t hidden, SpecList& list) {
  const int64_t kv_rows = int64_t{layer.num_kv_heads} * layer.head_dim;
  list.AddLayer("self_attn.k_proj.weight", {kv_rows, hidden}, kAttention, kMatrix);
  if (!layer.k_is_v) {
    list.AddLayer("self_attn.v_proj.weight", {kv_rows, hidden}, kAttention, kMatrix);
  }
  list.AddLayer("self_attn.k_norm.weight", {layer.head_dim}, kAttention, kQkNorm);
}

void AddAttention(const LayerPlan& layer, int64_t hidden, SpecList& list) {
  const int64_t q_rows = int64_t{layer.num_heads} * layer.head_dim;
  list.AddLayer("self_attn.q_proj.weight", {q_rows, hidden}, kAttention, kMatrix);
  list.AddLayer("self_attn.o_proj.weight", {hidden, q_rows}, kAttention, kMatrix);
  list.AddLayer("self_attn.q_norm.weight", {layer.head_dim}, kAttention, kQkNorm);
  if (layer.owns_kv()) AddKv(layer, hidden, list);
}

void AddMoe(const MoePlan& moe, int64_t hidden, SpecList& list) {
  list.AddLayer("router.proj.weight", {moe.num_experts, hidden}, kLayerOther, kRouter);
  list.AddLayer("router.scale", {hidden}, kLayerOther, kScale);
  list.AddLayer("router.per_expert_scale", {moe.num_experts}, kLayerOther, kScale);
  list.AddLayer("experts.gate_up_proj", {moe.num_experts, int64_t{2} * moe.expert_width, hidden},
                kExperts, kMatrix);
  list.AddLayer("experts.down_proj", {moe.num_experts, hidden, moe.expert_width}, kExperts,
                kMatrix);
  list.AddLayer("pre_feedforward_layernorm_2.weight", {hidden}, kLayerOther, kNorm);
  list.AddLayer("post_feedforward_layernorm_1.weight", {hidden}, kLayerOther, kNorm);
  list.AddLayer("post_feedforward_layernorm_2.weight", {hidden}, kLayerOther, kNorm);
}

}  // namespace

int64_t TensorSpec::num_elements() const {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  return count;
}

std::vector<TensorSpec> RequiredTensors(const ModelPlan& plan) {
  const int64_t hidden = plan.hidden_size;
  SpecList list;
  list.Add("embed_tokens.weight", {plan.vocab_size, hidden}, kEmbedding, kTable);
  if (plan.ple) {
    const int64_t ple_columns = int64_t{plan.num_layers} * plan.ple->width;
    list.Add("embed_tokens_per_layer.weight", {plan.ple->vocab_size, ple_columns},
             kPerLayerEmbedding, kTable);
    list.Add("per_layer_model_projection.weight", {ple_columns, hidden}, kPerLayerProjection,
             kMatrix);
    list.Add("per_layer_projection_norm.weight", {plan.ple->width}, kPerLayerProjection, kNorm);
  }
  for (const LayerPlan& layer : plan.layers) {
    list.BeginLayer(layer.index);
    list.AddLayer("input_layernorm.weight", {hidden}, kLayerOther, kNorm);
    AddAttention(layer, hidden, list);
    list.AddLayer("post_attention_layernorm.weight", {hidden}, kLayerOther, kNorm);
    list.AddLayer("pre_feedforward_layernorm.weight", {hidden}, kLayerOther, kNorm);
    list.AddLayer("mlp.gate_proj.weight", {layer.mlp_width, hidden}, kMlp, kMatrix);
    list.AddLayer("mlp.up_proj.weight", {layer.mlp_width, hidden}, kMlp, kMatrix);
    list.AddLayer("mlp.down_proj.weight", {hidden, layer.mlp_width}, kMlp, kMatrix);
    list.AddLayer("post_feedforward_layernorm.weight", {hidden}, kLayerOther, kNorm);
    if (layer.has_moe) AddMoe(*plan.moe, hidden, list);
    if (plan.ple) {
      list.AddLayer("per_layer_input_gate.weight", {plan.ple->width, hidden}, kLayerOther, kMatrix);
      list.AddLayer("per_layer_projection.weight", {hidden, plan.ple->width}, kLayerOther, kMatrix);
      list.AddLayer("post_per_layer_input_norm.weight", {hidden}, kLayerOther, kNorm);
    }
    list.AddLayer("layer_scalar", {1}, kLayerOther, kScale);
  }
  list.EndLayers();
  list.Add("norm.weight", {hidden}, TensorComponent::kFinalNorm, TensorRole::kFinalNorm);
  if (plan.has_own_head) list.Add(kHeadName, {plan.vocab_size, hidden}, kHead, kTable);
  return list.Take();
}

std::vector<TensorSpec> RequiredTensors(const AssistantPlan& plan) {
  const int64_t hidden = plan.decoder.hidden_size;
  const int64_t backbone = plan.backbone_hidden_size;
  SpecList list;
  list.Add("pre_projection.weight", {hidden, 2 * backbone}, kLayerOther, kMatrix);
  list.Add("post_projection.weight", {backbone, hidden}, kLayerOther, kMatrix);
  if (plan.ordered_head) {
    list.Add(kCentroids, {plan.ordered_head->num_centroids, hidden}, kEmbedding, kMatrix);
  }
  std::vector<TensorSpec> specs = list.Take();
  for (TensorSpec& spec : RequiredTensors(plan.decoder)) {
    // There is no softcap that synthetic logits should reach into.
    if (spec.role == TensorRole::kFinalNorm) spec.role = kNorm;
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::vector<TensorSpec> UnusedSharedKvTensors(const ModelPlan& plan) {
  SpecList list;
  for (const LayerPlan& layer : plan.layers) {
    if (layer.owns_kv()) continue;
    list.BeginLayer(layer.index);
    AddKv(layer, plan.hidden_size, list);
  }
  return list.Take();
}

}  // namespace lapidary
