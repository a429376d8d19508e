#include "model/weights.h"

#include <unordered_map>

namespace lapidary {
namespace {

// Fetches tensors by name, keeping the first problem.
class Binder {
 public:
  Binder(const ModelPlan& plan, const TensorSource& source) : source_(source) {
    for (TensorSpec& spec : RequiredTensors(plan)) {
      std::string name = spec.name;
      specs_.emplace(std::move(name), std::move(spec));
    }
  }

  TensorView Matrix(const std::string& name) {
    if (!status_.ok()) return {};
    const auto it = specs_.find(name);
    CHECK(it != specs_.end()) << name;
    Result<TensorView> tensor = source_.Get(it->second);
    if (!tensor.ok()) {
      status_ = tensor.error();
      return {};
    }
    return std::move(tensor).value();
  }
  std::vector<float> Vector(const std::string& name) {
    const TensorView tensor = Matrix(name);
    return status_.ok() ? ToFloats(tensor) : std::vector<float>();
  }
  const Status& status() const { return status_; }

 private:
  const TensorSource& source_;
  std::unordered_map<std::string, TensorSpec> specs_;
  Status status_;
};

void BindAttention(const LayerPlan& plan, const std::string& prefix, Binder& binder,
                   AttentionWeights& weights) {
  weights.q_proj = binder.Matrix(prefix + "self_attn.q_proj.weight");
  weights.o_proj = binder.Matrix(prefix + "self_attn.o_proj.weight");
  weights.q_norm = binder.Vector(prefix + "self_attn.q_norm.weight");
  if (!plan.owns_kv()) return;
  weights.k_proj = binder.Matrix(prefix + "self_attn.k_proj.weight");
  if (!plan.k_is_v) weights.v_proj = binder.Matrix(prefix + "self_attn.v_proj.weight");
  weights.k_norm = binder.Vector(prefix + "self_attn.k_norm.weight");
}

void BindMoe(const std::string& prefix, Binder& binder, MoeWeights& weights) {
  weights.router_proj = binder.Matrix(prefix + "router.proj.weight");
  weights.router_scale = binder.Vector(prefix + "router.scale");
  weights.per_expert_scale = binder.Vector(prefix + "router.per_expert_scale");
  weights.gate_up_proj = binder.Matrix(prefix + "experts.gate_up_proj");
  weights.down_proj = binder.Matrix(prefix + "experts.down_proj");
  weights.pre_norm = binder.Vector(prefix + "pre_feedforward_layernorm_2.weight");
  weights.post_dense_norm = binder.Vector(prefix + "post_feedforward_layernorm_1.weight");
  weights.post_expert_norm = binder.Vector(prefix + "post_feedforward_layernorm_2.weight");
}

}  // namespace

Result<ModelWeights> BindWeights(const ModelPlan& plan, const TensorSource& source) {
  Binder binder(plan, source);
  ModelWeights weights;
  weights.embedding = binder.Matrix("embed_tokens.weight");
  weights.final_norm = binder.Vector("norm.weight");
  if (plan.ple) {
    weights.ple_table = binder.Matrix("embed_tokens_per_layer.weight");
    weights.ple_projection = binder.Matrix("per_layer_model_projection.weight");
    weights.ple_projection_norm = binder.Vector("per_layer_projection_norm.weight");
  }
  for (const LayerPlan& layer : plan.layers) {
    const std::string prefix = fmt::format("layers.{}.", layer.index);
    LayerWeights& bound = weights.layers.emplace_back();
    bound.input_norm = binder.Vector(prefix + "input_layernorm.weight");
    bound.post_attention_norm = binder.Vector(prefix + "post_attention_layernorm.weight");
    bound.pre_mlp_norm = binder.Vector(prefix + "pre_feedforward_layernorm.weight");
    bound.post_mlp_norm = binder.Vector(prefix + "post_feedforward_layernorm.weight");
    BindAttention(layer, prefix, binder, bound.attention);
    bound.mlp.gate_proj = binder.Matrix(prefix + "mlp.gate_proj.weight");
    bound.mlp.up_proj = binder.Matrix(prefix + "mlp.up_proj.weight");
    bound.mlp.down_proj = binder.Matrix(prefix + "mlp.down_proj.weight");
    if (layer.has_moe) BindMoe(prefix, binder, bound.moe);
    if (plan.ple) {
      bound.ple.gate = binder.Matrix(prefix + "per_layer_input_gate.weight");
      bound.ple.projection = binder.Matrix(prefix + "per_layer_projection.weight");
      bound.ple.post_norm = binder.Vector(prefix + "post_per_layer_input_norm.weight");
    }
    const std::vector<float> scalar = binder.Vector(prefix + "layer_scalar");
    bound.layer_scalar = scalar.empty() ? 1.0f : scalar[0];
    RETURN_IF_ERROR(binder.status());
  }
  return weights;
}

}  // namespace lapidary
