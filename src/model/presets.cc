#include "model/presets.h"

#include <algorithm>

namespace lapidary {
namespace {

struct Preset {
  const char* name;
  const char* architecture;
  const char* model_type;  // of the outer config; the text part's is derived from it
  bool nested;             // fields under text_config
  int vocab_size = 262144;
  int hidden_size;
  int num_layers;
  int pattern;  // one full layer after pattern - 1 sliding ones
  int num_heads;
  int sliding_kv_heads;
  int full_kv_heads;  // 0: as sliding
  bool k_eq_v = false;
  int intermediate_size;
  bool double_wide = false;
  int num_kv_shared_layers = 0;
  int window;
  int ple_width = 0;
  int num_experts = 0;
  int top_k_experts = 0;
  int expert_width = 0;
  int max_positions;
};

// gemma4-text.md 1.1; the tiny ones keep head dims 256/512 so that real kernels run on them.
constexpr Preset kPresets[] = {
    {.name = "e2b",
     .architecture = "Gemma4ForConditionalGeneration",
     .model_type = "gemma4",
     .nested = true,
     .hidden_size = 1536,
     .num_layers = 35,
     .pattern = 5,
     .num_heads = 8,
     .sliding_kv_heads = 1,
     .full_kv_heads = 0,
     .intermediate_size = 6144,
     .double_wide = true,
     .num_kv_shared_layers = 20,
     .window = 512,
     .ple_width = 256,
     .max_positions = 131072},
    {.name = "e4b",
     .architecture = "Gemma4ForConditionalGeneration",
     .model_type = "gemma4",
     .nested = true,
     .hidden_size = 2560,
     .num_layers = 42,
     .pattern = 6,
     .num_heads = 8,
     .sliding_kv_heads = 2,
     .full_kv_heads = 0,
     .intermediate_size = 10240,
     .num_kv_shared_layers = 18,
     .window = 512,
     .ple_width = 256,
     .max_positions = 131072},
    {.name = "12b",
     .architecture = "Gemma4UnifiedForConditionalGeneration",
     .model_type = "gemma4_unified",
     .nested = true,
     .hidden_size = 3840,
     .num_layers = 48,
     .pattern = 6,
     .num_heads = 16,
     .sliding_kv_heads = 8,
     .full_kv_heads = 1,
     .k_eq_v = true,
     .intermediate_size = 15360,
     .window = 1024,
     .max_positions = 262144},
    {.name = "26b-a4b",
     .architecture = "Gemma4ForConditionalGeneration",
     .model_type = "gemma4",
     .nested = true,
     .hidden_size = 2816,
     .num_layers = 30,
     .pattern = 6,
     .num_heads = 16,
     .sliding_kv_heads = 8,
     .full_kv_heads = 2,
     .k_eq_v = true,
     .intermediate_size = 2112,
     .window = 1024,
     .num_experts = 128,
     .top_k_experts = 8,
     .expert_width = 704,
     .max_positions = 262144},
    {.name = "31b",
     .architecture = "Gemma4ForConditionalGeneration",
     .model_type = "gemma4",
     .nested = true,
     .hidden_size = 5376,
     .num_layers = 60,
     .pattern = 6,
     .num_heads = 32,
     .sliding_kv_heads = 16,
     .full_kv_heads = 4,
     .k_eq_v = true,
     .intermediate_size = 21504,
     .window = 1024,
     .max_positions = 262144},
    {.name = "tiny-e",
     .architecture = "Gemma4ForCausalLM",
     .model_type = "gemma4_text",
     .nested = false,
     .vocab_size = 512,
     .hidden_size = 96,
     .num_layers = 9,
     .pattern = 3,
     .num_heads = 4,
     .sliding_kv_heads = 2,
     .full_kv_heads = 0,
     .intermediate_size = 128,
     .double_wide = true,
     .num_kv_shared_layers = 4,
     .window = 24,
     .ple_width = 32,
     .max_positions = 4096},
    {.name = "tiny-moe",
     .architecture = "Gemma4ForCausalLM",
     .model_type = "gemma4_text",
     .nested = false,
     .vocab_size = 512,
     .hidden_size = 80,
     .num_layers = 6,
     .pattern = 3,
     .num_heads = 4,
     .sliding_kv_heads = 2,
     .full_kv_heads = 1,
     .k_eq_v = true,
     .intermediate_size = 96,
     .window = 32,
     .num_experts = 16,
     .top_k_experts = 4,
     .expert_width = 48,
     .max_positions = 4096},
    {.name = "tiny-dense",
     .architecture = "Gemma4ForCausalLM",
     .model_type = "gemma4_text",
     .nested = false,
     .vocab_size = 512,
     .hidden_size = 96,
     .num_layers = 6,
     .pattern = 3,
     .num_heads = 4,
     .sliding_kv_heads = 2,
     .full_kv_heads = 1,
     .k_eq_v = true,
     .intermediate_size = 192,
     .window = 40,
     .max_positions = 4096},
};

const Preset* FindPreset(std::string_view name) {
  const auto it = std::find_if(std::begin(kPresets), std::end(kPresets),
                               [&](const Preset& preset) { return name == preset.name; });
  return it == std::end(kPresets) ? nullptr : it;
}

Json TextConfig(const Preset& preset, bool unified) {
  Json config;
  config["model_type"] = unified ? "gemma4_unified_text" : "gemma4_text";
  config["attention_bias"] = false;
  config["attention_dropout"] = 0.0;
  config["attention_k_eq_v"] = preset.k_eq_v;
  config["bos_token_id"] = 2;
  config["dtype"] = "bfloat16";
  config["eos_token_id"] = 1;
  config["final_logit_softcapping"] = 30.0;
  config["global_head_dim"] = 512;
  config["head_dim"] = 256;
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["hidden_size"] = preset.hidden_size;
  config["intermediate_size"] = preset.intermediate_size;
  Json layer_types = Json::array();
  for (int layer_idx = 0; layer_idx < preset.num_layers; ++layer_idx) {
    const bool is_full = (layer_idx + 1) % preset.pattern == 0;
    layer_types.push_back(is_full ? "full_attention" : "sliding_attention");
  }
  config["layer_types"] = layer_types;
  config["max_position_embeddings"] = preset.max_positions;
  config["num_attention_heads"] = preset.num_heads;
  config["num_global_key_value_heads"] =
      preset.full_kv_heads == 0 ? Json(nullptr) : Json(preset.full_kv_heads);
  config["num_hidden_layers"] = preset.num_layers;
  config["num_key_value_heads"] = preset.sliding_kv_heads;
  config["num_kv_shared_layers"] = preset.num_kv_shared_layers;
  config["pad_token_id"] = 0;
  config["rms_norm_eps"] = 1e-6;
  config["rope_parameters"] = {
      {"full_attention",
       {{"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}, {"rope_type", "proportional"}}},
      {"sliding_attention", {{"rope_theta", 1e4}, {"rope_type", "default"}}}};
  config["sliding_window"] = preset.window;
  config["tie_word_embeddings"] = true;
  config["use_double_wide_mlp"] = preset.double_wide;
  config["vocab_size"] = preset.vocab_size;
  if (unified) return config;  // No PLE and no MoE keys exist there.
  config["enable_moe_block"] = preset.num_experts > 0;
  if (preset.num_experts > 0) {
    config["num_experts"] = preset.num_experts;
    config["top_k_experts"] = preset.top_k_experts;
    config["moe_intermediate_size"] = preset.expert_width;
  }
  config["hidden_size_per_layer_input"] = preset.ple_width;
  config["vocab_size_per_layer_input"] = preset.vocab_size;
  return config;
}

}  // namespace

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

bool IsPreset(std::string_view name) { return FindPreset(name) != nullptr; }

Result<Json> PresetConfig(std::string_view name) {
  const Preset* preset = FindPreset(name);
  if (preset == nullptr) {
    return MakeError("no preset named '{}'; there are {}", name, fmt::join(PresetNames(), ", "));
  }
  const bool unified = std::string_view(preset->model_type) == "gemma4_unified";
  Json config;
  config["architectures"] = Json::array({preset->architecture});
  Json text_config = TextConfig(*preset, unified);
  if (!preset->nested) {
    config.update(text_config);
    return config;
  }
  config["model_type"] = preset->model_type;
  config["dtype"] = "bfloat16";
  config["eos_token_id"] = Json::array({1, 106});
  config["tie_word_embeddings"] = true;
  config["text_config"] = std::move(text_config);
  config["vision_config"] = nullptr;
  config["audio_config"] = nullptr;
  return config;
}

}  // namespace lapidary
