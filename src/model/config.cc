#include "model/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

namespace lapidary {
namespace {

constexpr IntRange kCount{.min = 1, .max = 1 << 24};
constexpr IntRange kWidth{.min = 1, .max = 1 << 20};
constexpr IntRange kHeads{.min = 1, .max = 1024};
constexpr IntRange kLayers{.min = 1, .max = 1024};
constexpr IntRange kHeadDim{.min = 2, .max = 4096};

// The architectures this engine is cut to.
bool IsKnownArchitecture(const std::string& name) {
  return name == "Gemma4ForCausalLM" || name == "Gemma4ForConditionalGeneration" ||
         name == "Gemma4UnifiedForCausalLM" || name == "Gemma4UnifiedForConditionalGeneration";
}

bool IsAssistantArchitecture(const std::string& name) {
  return name == "Gemma4AssistantForCausalLM" || name == "Gemma4UnifiedAssistantForCausalLM";
}

RopeConfig ParseRope(const Json* rope_parameters, const char* key, RopeConfig fallback,
                     JsonFields& parent) {
  if (rope_parameters == nullptr) return fallback;
  JsonFields all(*rope_parameters, "rope_parameters");
  const Json* entry = all.OptionalObject(key);
  if (entry == nullptr) {
    parent.Fail(fmt::format("rope_parameters has no entry {}", key));
    return fallback;
  }
  JsonFields fields(*entry, fmt::format("rope_parameters.{}", key));
  RopeConfig rope;
  const std::string type = fields.StringOr("rope_type", "default");
  rope.proportional = type == "proportional";
  rope.theta = fields.NumberOr("rope_theta", fallback.theta, {.min = 1.0, .max = 1e12});
  rope.factor = fields.NumberOr("factor", 1.0, {.min = 1e-3, .max = 1e6});
  rope.partial_rotary_factor =
      fields.NumberOr("partial_rotary_factor", 1.0, {.min = 0.0, .max = 1.0});
  if (type != "proportional" && type != "default") {
    fields.Fail(fmt::format("rope_type '{}' is not one Gemma 4 uses", type));
  } else if (!rope.proportional && (rope.partial_rotary_factor != 1.0 || rope.factor != 1.0)) {
    fields.Fail("partial_rotary_factor and factor need rope_type 'proportional'");
  }
  if (!fields.status().ok()) parent.Fail(fields.status().error().message);
  return rope;
}

std::vector<AttentionKind> ParseLayerKinds(int num_layers, JsonFields& fields) {
  std::vector<AttentionKind> kinds(num_layers);
  if (const auto names = fields.OptionalStrings("layer_types")) {
    if (static_cast<int>(names->size()) != num_layers) {
      fields.Fail(fmt::format("layer_types has {} entries, num_hidden_layers is {}", names->size(),
                              num_layers));
      return kinds;
    }
    for (int layer_idx = 0; layer_idx < num_layers; ++layer_idx) {
      const std::string& name = (*names)[layer_idx];
      if (name != "sliding_attention" && name != "full_attention") {
        fields.Fail(fmt::format("layer_types[{}] is '{}'", layer_idx, name));
      }
      kinds[layer_idx] = name == "full_attention" ? AttentionKind::kFull : AttentionKind::kSliding;
    }
  } else {
    for (int layer_idx = 0; layer_idx < num_layers; ++layer_idx) {
      kinds[layer_idx] = (layer_idx + 1) % 6 == 0 ? AttentionKind::kFull : AttentionKind::kSliding;
    }
  }
  kinds.back() = AttentionKind::kFull;  // The reference forces this whatever the file says.
  return kinds;
}

// per_layer_config: {"04": {"head_dim": 512, "num_key_value_heads": 2}, ...}; keys are zero-padded.
void ApplyPerLayerConfig(const Json& per_layer, ModelConfig& config, JsonFields& fields) {
  std::set<int> named;
  for (const auto& [key, overrides] : per_layer.items()) {
    int layer_idx = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer_idx);
    if (error != std::errc() || end != key.data() + key.size() || layer_idx < 0 ||
        layer_idx >= config.num_layers) {
      fields.Fail(fmt::format("per_layer_config names layer '{}'; there are {} layers",
                              key.substr(0, 32), config.num_layers));
      return;
    }
    if (!named.insert(layer_idx).second) {
      fields.Fail(fmt::format("per_layer_config names layer {} twice", layer_idx));
      return;
    }
    JsonFields layer(overrides, fmt::format("per_layer_config.{}", layer_idx));
    if (overrides.is_object()) {
      for (const auto& [name, value] : overrides.items()) {
        if (name != "head_dim" && name != "num_key_value_heads") {
          layer.Fail(fmt::format("override '{}' is not supported", name.substr(0, 64)));
        }
      }
    }
    config.head_dims[layer_idx] =
        static_cast<int>(layer.IntOr("head_dim", config.head_dims[layer_idx], kHeadDim));
    config.num_kv_heads[layer_idx] = static_cast<int>(
        layer.IntOr("num_key_value_heads", config.num_kv_heads[layer_idx], kHeads));
    if (!layer.status().ok()) {
      fields.Fail(layer.status().error().message);
      return;
    }
  }
}

void ParseAttentionShape(JsonFields& fields, ModelConfig& config) {
  config.layer_kinds = ParseLayerKinds(config.num_layers, fields);
  const int head_dim = static_cast<int>(fields.IntOr("head_dim", 256, kHeadDim));
  const int num_kv_heads = static_cast<int>(fields.Int("num_key_value_heads", kHeads));
  config.head_dims.assign(config.num_layers, head_dim);
  config.num_kv_heads.assign(config.num_layers, num_kv_heads);

  if (const Json* per_layer = fields.OptionalObject("per_layer_config")) {
    ApplyPerLayerConfig(*per_layer, config, fields);
  } else {
    const int full_head_dim = static_cast<int>(fields.IntOr("global_head_dim", 512, kHeadDim));
    const int full_kv_heads =
        config.k_eq_v
            ? static_cast<int>(fields.IntOr("num_global_key_value_heads", num_kv_heads, kHeads))
            : num_kv_heads;
    for (int layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
      if (config.layer_kinds[layer_idx] != AttentionKind::kFull) continue;
      config.head_dims[layer_idx] = full_head_dim;
      config.num_kv_heads[layer_idx] = full_kv_heads;
    }
  }
  for (int layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    if (config.head_dims[layer_idx] % 2 != 0) {
      fields.Fail(
          fmt::format("layer {}: head_dim {} is odd", layer_idx, config.head_dims[layer_idx]));
    }
    if (config.num_heads % config.num_kv_heads[layer_idx] != 0) {
      fields.Fail(fmt::format("layer {}: {} attention heads do not divide into {} KV heads",
                              layer_idx, config.num_heads, config.num_kv_heads[layer_idx]));
    }
  }
}

void ParseMoe(JsonFields& fields, ModelConfig& config) {
  config.moe = fields.BoolOr("enable_moe_block", false);
  if (!config.moe) return;
  config.num_experts = static_cast<int>(fields.Int("num_experts", {.min = 1, .max = 4096}));
  config.top_k_experts =
      static_cast<int>(fields.Int("top_k_experts", {.min = 1, .max = config.num_experts}));
  config.expert_width = static_cast<int>(fields.Int("moe_intermediate_size", kWidth));
  // Keeps the parameter count of any accepted config far below 2^63.
  if (int64_t{config.num_experts} * config.expert_width > kWidth.max) {
    fields.Fail(fmt::format("num_experts {} times moe_intermediate_size {} is beyond {}",
                            config.num_experts, config.expert_width, kWidth.max));
  }
}

// Refuses what would silently change the result if ignored.
void RefuseUnsupported(JsonFields& fields) {
  const std::string activation = fields.StringOr("hidden_activation", "gelu_pytorch_tanh");
  if (activation != "gelu_pytorch_tanh") {
    fields.Fail(fmt::format("hidden_activation '{}' is not Gemma 4's", activation));
  }
  if (fields.BoolOr("attention_bias", false)) fields.Fail("attention_bias is not supported");
  if (fields.StringOr("use_bidirectional_attention", "") == "all") {
    fields.Fail("use_bidirectional_attention 'all' is not a generating model");
  }
}

// Refuses a file quantised by another method than compressed-tensors and modelopt.
Status RefuseQuantised(const Json& json, const Json* text_config, std::string_view name) {
  for (const Json* part : {&json, text_config}) {
    if (part == nullptr || !part->contains("quantization_config")) continue;
    const Json& quantisation = (*part)["quantization_config"];
    if (quantisation.is_null()) continue;
    std::string method = "an unknown method";
    if (quantisation.is_object() && quantisation.contains("quant_method") &&
        quantisation["quant_method"].is_string()) {
      method = quantisation["quant_method"].get<std::string>().substr(0, 80);
    }
    if (method == "compressed-tensors" || method == "modelopt") continue;
    return MakeError(
        "{}: quantised checkpoints of {} are not supported; use the bf16 one, a GGUF file or one "
        "of compressed-tensors or modelopt",
        name, method);
  }
  return {};
}

// Placeholders may lie beyond the vocabulary: they are never embedded.
MediaTokens ParseMediaTokens(JsonFields& top) {
  const auto id = [&](const char* key, int fallback) {
    return static_cast<int>(top.IntOr(key, fallback, {.min = 0, .max = INT32_MAX}));
  };
  MediaTokens tokens;
  tokens.image = id("image_token_id", tokens.image);
  tokens.audio = id("audio_token_id", tokens.audio);
  tokens.video = id("video_token_id", tokens.video);
  tokens.begin_image = id("boi_token_id", tokens.begin_image);
  tokens.end_image = id("eoi_token_id", tokens.end_image);
  tokens.begin_audio = id("boa_token_id", tokens.begin_audio);
  tokens.end_audio = id("eoa_token_index", id("eoa_token_id", tokens.end_audio));
  return tokens;
}

// What every decoder has, a model's and an assistant's.
void ParseDecoder(JsonFields& fields, ModelConfig& config) {
  config.vocab_size = static_cast<int>(fields.Int("vocab_size", kCount));
  config.hidden_size = static_cast<int>(fields.Int("hidden_size", kWidth));
  config.num_layers = static_cast<int>(fields.Int("num_hidden_layers", kLayers));
  config.num_heads = static_cast<int>(fields.Int("num_attention_heads", kHeads));
  config.intermediate_size = static_cast<int>(fields.Int("intermediate_size", kWidth));
  config.max_position_embeddings =
      static_cast<int>(fields.IntOr("max_position_embeddings", 131072, {.min = 1, .max = 1 << 28}));
  config.sliding_window =
      static_cast<int>(fields.IntOr("sliding_window", 512, {.min = 1, .max = 1 << 28}));
  config.rms_norm_eps = fields.NumberOr("rms_norm_eps", 1e-6, {.min = 0.0, .max = 1.0});
  config.final_logit_softcap =
      fields.NumberOr("final_logit_softcapping", 0.0, {.min = 0.0, .max = 1e6});
  config.has_own_head = !fields.BoolOr("tie_word_embeddings", true);
  if (!fields.status().ok()) return;  // The rest counts layers.

  config.k_eq_v = fields.BoolOr("attention_k_eq_v", false);
  ParseAttentionShape(fields, config);
  const Json* rope_parameters = fields.OptionalObject("rope_parameters");
  config.sliding_rope = ParseRope(rope_parameters, "sliding_attention",
                                  {.proportional = false, .theta = 1e4}, fields);
  config.full_rope =
      ParseRope(rope_parameters, "full_attention",
                {.proportional = true, .theta = 1e6, .partial_rotary_factor = 0.25}, fields);
  RefuseUnsupported(fields);
}

}  // namespace

const char* AttentionKindName(AttentionKind kind) {
  return kind == AttentionKind::kSliding ? "sliding" : "full";
}

Result<ModelConfig> ParseModelConfig(const Json& json, std::string_view name) {
  ModelConfig config;
  JsonFields top(json, std::string(name));
  const auto architectures = top.OptionalStrings("architectures");
  config.architecture = architectures && !architectures->empty() ? architectures->front() : "";
  if (config.architecture.find("Assistant") != std::string::npos) {
    top.Fail(fmt::format("'{}' is a drafting assistant; name its target model instead",
                         config.architecture.substr(0, 80)));
  } else if (!IsKnownArchitecture(config.architecture)) {
    top.Fail(
        fmt::format("architecture '{}' is not Gemma 4 (supported: Gemma4ForCausalLM, "
                    "Gemma4ForConditionalGeneration, Gemma4UnifiedForConditionalGeneration)",
                    config.architecture.substr(0, 80)));
  }
  const Json* text_config = top.OptionalObject("text_config");
  RETURN_IF_ERROR(top.status());
  RETURN_IF_ERROR(RefuseQuantised(json, text_config, name));
  config.is_multimodal = text_config != nullptr;
  if (config.is_multimodal) config.media_tokens = ParseMediaTokens(top);
  RETURN_IF_ERROR(top.status());

  JsonFields fields(
      text_config != nullptr ? *text_config : json,
      text_config != nullptr ? fmt::format("{}: text_config", name) : std::string(name));
  ParseDecoder(fields, config);
  RETURN_IF_ERROR(fields.status());
  config.num_kv_shared_layers = static_cast<int>(
      fields.IntOr("num_kv_shared_layers", 0, {.min = 0, .max = config.num_layers - 1}));
  config.double_wide_mlp = fields.BoolOr("use_double_wide_mlp", false);
  if (config.media_tokens) {
    config.bidirectional_images = fields.StringOr("use_bidirectional_attention", "") == "vision";
    config.media_tokens->pad =
        static_cast<int>(fields.IntOr("pad_token_id", 0, {.min = 0, .max = config.vocab_size - 1}));
  }

  // The unified text config has no PLE keys at all; gemma4_text defaults to 256 when the key is
  // absent.
  const bool unified = config.architecture.find("Unified") != std::string::npos ||
                       fields.StringOr("model_type", "gemma4_text") == "gemma4_unified_text";
  config.ple_width = static_cast<int>(
      fields.IntOr("hidden_size_per_layer_input", unified ? 0 : 256, {.min = 0, .max = 1 << 16}));
  if (config.ple_width > 0) {
    config.ple_vocab_size =
        static_cast<int>(fields.IntOr("vocab_size_per_layer_input", 262144, kCount));
    if (config.ple_vocab_size < config.vocab_size) {
      fields.Fail(fmt::format("vocab_size_per_layer_input {} is below vocab_size {}",
                              config.ple_vocab_size, config.vocab_size));
    }
  }
  ParseMoe(fields, config);
  RETURN_IF_ERROR(fields.status());
  return config;
}

Result<AssistantConfig> ParseAssistantConfig(const Json& json, std::string_view name) {
  AssistantConfig config;
  JsonFields top(json, std::string(name));
  const auto architectures = top.OptionalStrings("architectures");
  ModelConfig& decoder = config.decoder;
  decoder.architecture = architectures && !architectures->empty() ? architectures->front() : "";
  if (!IsAssistantArchitecture(decoder.architecture)) {
    top.Fail(
        fmt::format("architecture '{}' is not a Gemma 4 drafting assistant (supported: "
                    "Gemma4AssistantForCausalLM, Gemma4UnifiedAssistantForCausalLM)",
                    decoder.architecture.substr(0, 80)));
  }
  const Json* text_config = top.OptionalObject("text_config");
  if (text_config == nullptr) top.Fail("text_config is missing");
  config.backbone_hidden_size = static_cast<int>(top.Int("backbone_hidden_size", kWidth));
  config.ordered_embeddings = top.BoolOr("use_ordered_embeddings", false);
  if (config.ordered_embeddings) {
    config.num_centroids = static_cast<int>(top.Int("num_centroids", kCount));
    config.centroid_top_k = static_cast<int>(
        top.Int("centroid_intermediate_top_k", {.min = 1, .max = config.num_centroids}));
  }
  RETURN_IF_ERROR(top.status());
  RETURN_IF_ERROR(RefuseQuantised(json, text_config, name));

  JsonFields fields(*text_config, fmt::format("{}: text_config", name));
  ParseDecoder(fields, decoder);
  // Whatever the file says, no layer has keys of its own.
  decoder.num_kv_shared_layers = decoder.num_layers;
  if (fields.IntOr("hidden_size_per_layer_input", 0, {.min = 0, .max = 1 << 16}) > 0 ||
      fields.BoolOr("enable_moe_block", false) || fields.BoolOr("use_double_wide_mlp", false)) {
    fields.Fail("an assistant has no per-layer embeddings, no experts and no double-wide MLP");
  }
  if (decoder.final_logit_softcap != 0.0) {
    fields.Fail("final_logit_softcapping is not an assistant's");
  }
  if (decoder.has_own_head) {
    fields.Fail("tie_word_embeddings false is not supported: an assistant ties its head");
  }
  if (config.ordered_embeddings && decoder.vocab_size % config.num_centroids != 0) {
    fields.Fail(fmt::format("vocab_size {} does not divide into {} centroids", decoder.vocab_size,
                            config.num_centroids));
  }
  RETURN_IF_ERROR(fields.status());
  return config;
}

Result<ModelConfig> ParseModelConfig(std::string_view text, std::string_view name) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, name));
  return ParseModelConfig(json, name);
}

}  // namespace lapidary
