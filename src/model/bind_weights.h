// BindWeightsTo, for the files that define a storage.
#pragma once

#include <initializer_list>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "model/weights.h"

namespace lapidary {
namespace internal {

// Fetches tensors by name, keeping the first problem.
template <typename Storage>
class WeightBinder {
 public:
  WeightBinder(std::vector<TensorSpec> specs, Storage& storage) : storage_(storage) {
    for (TensorSpec& spec : specs) {
      std::string name = spec.name;
      specs_.emplace(std::move(name), std::move(spec));
    }
  }

  MatrixRef Matrix(const std::string& name) {
    return Take(name, [&](const TensorSpec& spec) { return storage_.GetMatrix(spec); });
  }
  typename Storage::Vector Vector(const std::string& name) {
    return Take(name, [&](const TensorSpec& spec) { return storage_.GetVector(spec); });
  }
  float Scalar(const std::string& name) {
    return Take(name, [&](const TensorSpec& spec) { return storage_.GetScalar(spec); });
  }
  // What the matrices form together, where the storage stacks them.
  MatrixRef Stack(std::initializer_list<MatrixRef> parts) const {
    return Storage::kStacksRows && status_.ok() ? StackRows(parts) : MatrixRef{};
  }
  const Status& status() const { return status_; }

 private:
  template <typename Get>
  auto Take(const std::string& name, const Get& get) {
    using Value = std::decay_t<decltype(get(std::declval<TensorSpec>()).value())>;
    if (!status_.ok()) return Value{};
    const auto it = specs_.find(name);
    CHECK(it != specs_.end()) << name;
    auto result = get(it->second);
    if (result.ok()) return Value(std::move(result).value());
    status_ = result.error();
    return Value{};
  }

  Storage& storage_;
  std::unordered_map<std::string, TensorSpec> specs_;
  Status status_;
};

template <typename Storage>
void BindAttention(const LayerPlan& plan, const std::string& prefix, WeightBinder<Storage>& binder,
                   AttentionWeightsOf<Storage>& weights) {
  weights.q_proj = binder.Matrix(prefix + "self_attn.q_proj.weight");
  if (plan.owns_kv()) {
    weights.k_proj = binder.Matrix(prefix + "self_attn.k_proj.weight");
    if (!plan.k_is_v) weights.v_proj = binder.Matrix(prefix + "self_attn.v_proj.weight");
    weights.k_norm = binder.Vector(prefix + "self_attn.k_norm.weight");
  }
  weights.qkv_proj = binder.Stack({weights.q_proj, weights.k_proj, weights.v_proj});
  weights.o_proj = binder.Matrix(prefix + "self_attn.o_proj.weight");
  weights.q_norm = binder.Vector(prefix + "self_attn.q_norm.weight");
}

template <typename Storage>
void BindMoe(const std::string& prefix, WeightBinder<Storage>& binder,
             MoeWeightsOf<Storage>& weights) {
  weights.router_proj = binder.Matrix(prefix + "router.proj.weight");
  weights.router_scale = binder.Vector(prefix + "router.scale");
  weights.per_expert_scale = binder.Vector(prefix + "router.per_expert_scale");
  weights.gate_up_proj = binder.Matrix(prefix + "experts.gate_up_proj");
  weights.down_proj = binder.Matrix(prefix + "experts.down_proj");
  weights.pre_norm = binder.Vector(prefix + "pre_feedforward_layernorm_2.weight");
  weights.post_dense_norm = binder.Vector(prefix + "post_feedforward_layernorm_1.weight");
  weights.post_expert_norm = binder.Vector(prefix + "post_feedforward_layernorm_2.weight");
}

template <typename Storage>
Status BindDecoder(const ModelPlan& plan, WeightBinder<Storage>& binder,
                   ModelWeightsOf<Storage>& weights) {
  weights.embedding = binder.Matrix("embed_tokens.weight");
  weights.head = plan.has_own_head ? binder.Matrix(kHeadName) : weights.embedding;
  weights.final_norm = binder.Vector("norm.weight");
  if (plan.ple) {
    weights.ple_table = binder.Matrix("embed_tokens_per_layer.weight");
    weights.ple_projection = binder.Matrix("per_layer_model_projection.weight");
    weights.ple_projection_norm = binder.Vector("per_layer_projection_norm.weight");
  }
  for (const LayerPlan& layer : plan.layers) {
    const std::string prefix = fmt::format("layers.{}.", layer.index);
    LayerWeightsOf<Storage>& bound = weights.layers.emplace_back();
    bound.input_norm = binder.Vector(prefix + "input_layernorm.weight");
    bound.post_attention_norm = binder.Vector(prefix + "post_attention_layernorm.weight");
    bound.pre_mlp_norm = binder.Vector(prefix + "pre_feedforward_layernorm.weight");
    bound.post_mlp_norm = binder.Vector(prefix + "post_feedforward_layernorm.weight");
    BindAttention(layer, prefix, binder, bound.attention);
    bound.mlp.gate_proj = binder.Matrix(prefix + "mlp.gate_proj.weight");
    bound.mlp.up_proj = binder.Matrix(prefix + "mlp.up_proj.weight");
    bound.mlp.gate_up_proj = binder.Stack({bound.mlp.gate_proj, bound.mlp.up_proj});
    bound.mlp.down_proj = binder.Matrix(prefix + "mlp.down_proj.weight");
    if (layer.has_moe) BindMoe(prefix, binder, bound.moe);
    if (plan.ple) {
      bound.ple.gate = binder.Matrix(prefix + "per_layer_input_gate.weight");
      bound.ple.projection = binder.Matrix(prefix + "per_layer_projection.weight");
      bound.ple.post_norm = binder.Vector(prefix + "post_per_layer_input_norm.weight");
    }
    bound.layer_scalar = binder.Scalar(prefix + "layer_scalar");
    RETURN_IF_ERROR(binder.status());
  }
  return {};
}

}  // namespace internal

template <typename Storage>
Result<ModelWeightsOf<Storage>> BindWeightsTo(const ModelPlan& plan, Storage& storage) {
  internal::WeightBinder<Storage> binder(RequiredTensors(plan), storage);
  ModelWeightsOf<Storage> weights;
  RETURN_IF_ERROR(internal::BindDecoder(plan, binder, weights));
  return weights;
}

template <typename Storage>
Result<AssistantWeightsOf<Storage>> BindWeightsTo(const AssistantPlan& plan, Storage& storage) {
  internal::WeightBinder<Storage> binder(RequiredTensors(plan), storage);
  AssistantWeightsOf<Storage> weights;
  weights.pre_projection = binder.Matrix("pre_projection.weight");
  weights.post_projection = binder.Matrix("post_projection.weight");
  if (plan.ordered_head) weights.centroids = binder.Matrix(kCentroids);
  RETURN_IF_ERROR(internal::BindDecoder(plan.decoder, binder, weights.decoder));
  return weights;
}

}  // namespace lapidary
