#include "model/assistant_preset.h"

#include <algorithm>

#include "model/presets.h"

namespace lapidary {
namespace {

struct AssistantPreset {
  const char* target;
  int hidden_size;
  int num_heads;
  int intermediate_size;
  bool ordered;  // centroid head
  int num_centroids;
  int centroid_top_k;
};

constexpr AssistantPreset kAssistants[] = {
    {"e2b", 256, 4, 2048, true, 2048, 32},    {"e4b", 256, 4, 2048, true, 2048, 32},
    {"12b", 1024, 16, 8192, false, 2048, 32}, {"26b-a4b", 1024, 16, 8192, false, 2048, 32},
    {"31b", 1024, 32, 8192, false, 2048, 32}, {"tiny-e", 64, 4, 96, true, 32, 4},
    {"tiny-moe", 64, 4, 96, false, 32, 4},    {"tiny-dense", 64, 4, 96, false, 32, 4},
};

}  // namespace

Result<Json> AssistantConfig(std::string_view preset) {
  const auto it =
      std::find_if(std::begin(kAssistants), std::end(kAssistants),
                   [&](const AssistantPreset& entry) { return preset == entry.target; });
  if (it == std::end(kAssistants)) return MakeError("no assistant preset for '{}'", preset);
  ASSIGN_OR_RETURN(const Json target, PresetConfig(preset));
  const bool nested = target.contains("text_config");
  const bool unified = target["architectures"][0].get<std::string>().find("Unified") == 6;

  Json text = nested ? target["text_config"] : target;
  text.erase("architectures");
  const Json backbone_hidden_size = text["hidden_size"];
  text["hidden_size"] = it->hidden_size;
  text["num_attention_heads"] = it->num_heads;
  text["intermediate_size"] = it->intermediate_size;
  text["num_hidden_layers"] = 4;
  text["num_kv_shared_layers"] = 4;
  text["layer_types"] = Json::array(
      {"sliding_attention", "sliding_attention", "sliding_attention", "full_attention"});
  text["final_logit_softcapping"] = nullptr;
  text["use_double_wide_mlp"] = false;
  if (!unified) {
    text["enable_moe_block"] = false;
    text["hidden_size_per_layer_input"] = 0;
    text["vocab_size_per_layer_input"] = 0;
  }
  for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) text.erase(key);

  Json config;
  config["architectures"] =
      Json::array({unified ? "Gemma4UnifiedAssistantForCausalLM" : "Gemma4AssistantForCausalLM"});
  config["model_type"] = unified ? "gemma4_unified_assistant" : "gemma4_assistant";
  config["dtype"] = "bfloat16";
  config["backbone_hidden_size"] = backbone_hidden_size;
  config["use_ordered_embeddings"] = it->ordered;
  config["num_centroids"] = it->num_centroids;
  config["centroid_intermediate_top_k"] = it->centroid_top_k;
  config["tie_word_embeddings"] = true;
  config["text_config"] = std::move(text);
  return config;
}

std::vector<TensorSpec> AssistantTensors(const Json& config) {
  using enum TensorRole;
  const Json& text = config["text_config"];
  const int64_t hidden = text["hidden_size"];
  const int64_t width = text["intermediate_size"];
  const int64_t heads = text["num_attention_heads"];
  const int64_t vocab = text["vocab_size"];
  const int64_t backbone = config["backbone_hidden_size"];
  std::vector<TensorSpec> specs;
  const auto add = [&](std::string name, std::vector<int64_t> shape, TensorRole role) {
    specs.push_back({std::move(name), std::move(shape), TensorComponent::kLayerOther, role});
  };
  add("pre_projection.weight", {hidden, 2 * backbone}, kMatrix);
  add("post_projection.weight", {backbone, hidden}, kMatrix);
  add("model.embed_tokens.weight", {vocab, hidden}, kTable);
  for (size_t layer_idx = 0; layer_idx < text["layer_types"].size(); ++layer_idx) {
    const bool is_full = text["layer_types"][layer_idx] == "full_attention";
    const int64_t head_dim = text[is_full ? "global_head_dim" : "head_dim"];
    const std::string prefix = fmt::format("model.layers.{}.", layer_idx);
    add(prefix + "input_layernorm.weight", {hidden}, kNorm);
    add(prefix + "self_attn.q_proj.weight", {heads * head_dim, hidden}, kMatrix);
    add(prefix + "self_attn.q_norm.weight", {head_dim}, kQkNorm);
    add(prefix + "self_attn.o_proj.weight", {hidden, heads * head_dim}, kMatrix);
    add(prefix + "post_attention_layernorm.weight", {hidden}, kNorm);
    add(prefix + "pre_feedforward_layernorm.weight", {hidden}, kNorm);
    add(prefix + "mlp.gate_proj.weight", {width, hidden}, kMatrix);
    add(prefix + "mlp.up_proj.weight", {width, hidden}, kMatrix);
    add(prefix + "mlp.down_proj.weight", {hidden, width}, kMatrix);
    add(prefix + "post_feedforward_layernorm.weight", {hidden}, kNorm);
    add(prefix + "layer_scalar", {1}, kScale);
  }
  add("model.norm.weight", {hidden}, kNorm);
  if (config["use_ordered_embeddings"].get<bool>()) {
    add("masked_embedding.centroids.weight", {config["num_centroids"].get<int64_t>(), hidden},
        kMatrix);
  }
  return specs;
}

}  // namespace lapidary
