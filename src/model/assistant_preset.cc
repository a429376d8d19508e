#include "model/assistant_preset.h"

#include <algorithm>

#include "model/config.h"
#include "model/presets.h"

namespace lapidary {
namespace {

struct AssistantShape {
  int hidden_size;
  int num_heads;
  int intermediate_size;
  bool ordered;  // centroid head
  int num_centroids;
  int centroid_top_k;
};

struct AssistantPreset {
  const char* target;
  AssistantShape shape;
};

constexpr AssistantPreset kAssistants[] = {
    {"e2b", {256, 4, 2048, true, 2048, 32}},    {"e4b", {256, 4, 2048, true, 2048, 32}},
    {"12b", {1024, 16, 8192, false, 2048, 32}}, {"26b-a4b", {1024, 16, 8192, false, 2048, 32}},
    {"31b", {1024, 32, 8192, false, 2048, 32}}, {"tiny-e", {64, 4, 96, true, 32, 4}},
    {"tiny-moe", {64, 4, 96, false, 32, 4}},    {"tiny-dense", {64, 4, 96, false, 32, 4}},
};

Json MakeConfig(const Json& target, const AssistantShape& shape) {
  const bool nested = target.contains("text_config");
  const bool unified = target["architectures"][0].get<std::string>().find("Unified") == 6;

  Json text = nested ? target["text_config"] : target;
  text.erase("architectures");
  const Json backbone_hidden_size = text["hidden_size"];
  text["hidden_size"] = shape.hidden_size;
  text["num_attention_heads"] = shape.num_heads;
  text["intermediate_size"] = shape.intermediate_size;
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
  config["use_ordered_embeddings"] = shape.ordered;
  config["num_centroids"] = shape.num_centroids;
  config["centroid_intermediate_top_k"] = shape.centroid_top_k;
  config["tie_word_embeddings"] = true;
  config["text_config"] = std::move(text);
  return config;
}

}  // namespace

Result<Json> AssistantPresetConfig(std::string_view preset) {
  const auto it =
      std::find_if(std::begin(kAssistants), std::end(kAssistants),
                   [&](const AssistantPreset& entry) { return preset == entry.target; });
  if (it == std::end(kAssistants)) return MakeError("no assistant preset for '{}'", preset);
  ASSIGN_OR_RETURN(const Json target, PresetConfig(preset));
  return MakeConfig(target, it->shape);
}

Result<Json> TinyAssistantConfig(const Json& target, bool ordered) {
  ASSIGN_OR_RETURN(const ModelConfig parsed, ParseModelConfig(target, "the configuration"));
  // As many tokens a centroid as there are, up to a handful, so that the vocabulary divides.
  int num_centroids = parsed.vocab_size;
  while (num_centroids % 2 == 0 && parsed.vocab_size / num_centroids < 16) num_centroids /= 2;
  Json config = MakeConfig(target, {.hidden_size = 48,
                                    .num_heads = parsed.num_heads,
                                    .intermediate_size = 80,
                                    .ordered = ordered,
                                    .num_centroids = num_centroids,
                                    .centroid_top_k = std::min(4, num_centroids)});
  // Layers differ from the target's in number: heads are given by kind.
  Json& text = config["text_config"];
  text.erase("per_layer_config");
  for (int layer_idx = 0; layer_idx < parsed.num_layers; ++layer_idx) {
    const bool is_full = parsed.layer_kinds[layer_idx] == AttentionKind::kFull;
    text[is_full ? "global_head_dim" : "head_dim"] = parsed.head_dims[layer_idx];
    text[is_full ? "num_global_key_value_heads" : "num_key_value_heads"] =
        parsed.num_kv_heads[layer_idx];
  }
  return config;
}

}  // namespace lapidary
