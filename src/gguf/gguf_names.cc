#include "gguf/gguf_names.h"

#include <fmt/format.h>

#include "base/check.h"
#include "model/tensor_specs.h"

namespace lapidary {
namespace {

struct NamePair {
  std::string_view name;
  std::string_view gguf_name;
};

constexpr NamePair kGlobalNames[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    {"per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
    {"norm.weight", "output_norm.weight"},
    {kHeadName, "output.weight"},
    {"pre_projection.weight", "nextn.pre_projection.weight"},
    {"post_projection.weight", "nextn.post_projection.weight"},
};

constexpr NamePair kLayerNames[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"per_layer_input_gate.weight", "inp_gate.weight"},
    {"per_layer_projection.weight", "proj.weight"},
    {"post_per_layer_input_norm.weight", "post_norm.weight"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"router.proj.weight", "ffn_gate_inp.weight"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"},
    {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"},
    {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"},
};

}  // namespace

std::string GgufTensorName(std::string_view name) {
  for (const NamePair& pair : kGlobalNames) {
    if (pair.name == name) return std::string(pair.gguf_name);
  }
  constexpr std::string_view kPrefix = "layers.";
  const size_t dot = name.find('.', kPrefix.size());
  CHECK(name.starts_with(kPrefix) && dot != std::string_view::npos) << name;
  const std::string_view layer = name.substr(kPrefix.size(), dot - kPrefix.size());
  for (const NamePair& pair : kLayerNames) {
    if (pair.name == name.substr(dot + 1)) return fmt::format("blk.{}.{}", layer, pair.gguf_name);
  }
  CHECK(false) << name;
  return {};
}

}  // namespace lapidary
