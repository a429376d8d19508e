#include "gguf/gguf_config.h"

#include <algorithm>

#include "gguf/config_keys.h"

namespace lapidary {
namespace {

constexpr std::string_view kArchitecture = "gemma4";
constexpr std::string_view kAssistantArchitecture = "gemma4-assistant";
constexpr int64_t kMaxLayers = 1024;

// rope_freqs divides the frequency of each pair of a full layer: by 1 for those that turn, which
// come first, by some 1e30 for the others.
void AddRope(const GgufCheckpoint& checkpoint, int64_t full_head_dim, ConfigKeys& keys,
             Json& config) {
  const std::string where = checkpoint.path().string();
  Json& rope = config["rope_parameters"];
  rope["sliding_attention"] = {{"rope_type", "default"},
                               {"rope_theta", keys.NumberOr("rope.freq_base_swa", 1e4)}};
  const TensorView* factors = checkpoint.Find("rope_freqs.weight");
  if (factors == nullptr || factors->dtype != DType::kF32 ||
      factors->num_elements() != full_head_dim / 2) {
    keys.Fail("{}: rope_freqs.weight must be there with {} F32 values", where, full_head_dim / 2);
    return;
  }
  constexpr float kNeverTurns = 1e20f;
  const std::vector<float> values = ToFloats(*factors);
  const auto first_still =
      std::find_if(values.begin(), values.end(), [](float value) { return value != 1.0f; });
  if (!std::all_of(first_still, values.end(), [](float v) { return v >= kNeverTurns; })) {
    keys.Fail("{}: rope_freqs.weight scales frequencies, which Gemma 4 does not", where);
  }
  rope["full_attention"] = {
      {"rope_type", "proportional"},
      {"rope_theta", keys.NumberOr("rope.freq_base", 1e6)},
      {"partial_rotary_factor", static_cast<double>(first_still - values.begin()) /
                                    static_cast<double>(std::max<size_t>(values.size(), 1))}};
}

// Full layers that own their KV have either all a v projection or none.
bool FullLayersHaveNoV(const GgufCheckpoint& checkpoint, const std::vector<int64_t>& is_sliding,
                       int64_t first_shared) {
  for (int64_t layer = 0; layer < first_shared; ++layer) {
    if (is_sliding[layer] == 0 &&
        checkpoint.Find(fmt::format("blk.{}.attn_v.weight", layer)) == nullptr) {
      return true;
    }
  }
  return false;
}

void AddMlp(const std::vector<int64_t>& widths, int64_t first_shared, ConfigKeys& keys,
            Json& config) {
  const int64_t num_layers = static_cast<int64_t>(widths.size());
  const bool is_double_wide = first_shared < num_layers && widths.back() == 2 * widths.front();
  config["intermediate_size"] = widths.front();
  config["use_double_wide_mlp"] = is_double_wide;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const int64_t wanted = widths.front() * (is_double_wide && layer >= first_shared ? 2 : 1);
    if (widths[layer] != wanted) {
      keys.Fail("feed_forward_length of layer {} is {}; Gemma 4 would have {}", layer,
                widths[layer], wanted);
    }
  }
}

Result<int64_t> VocabularySize(const GgufCheckpoint& checkpoint) {
  const std::string where = checkpoint.path().string();
  const TensorView* table = checkpoint.Find("token_embd.weight");
  if (table == nullptr || table->shape.size() != 2) {
    return MakeError("{}: token_embd.weight is missing or no matrix", where);
  }
  const GgufValue* tokens = checkpoint.Value("tokenizer.ggml.tokens");
  if (tokens != nullptr && tokens->size() > static_cast<uint64_t>(table->shape[0])) {
    return MakeError("{}: the vocabulary has {} tokens, token_embd.weight only {} rows", where,
                     tokens->size(), table->shape[0]);
  }
  return table->shape[0];
}

void AddPerLayerInputs(const GgufCheckpoint& checkpoint, ConfigKeys& keys, Json& config) {
  const int64_t width = keys.IntOr("embedding_length_per_layer_input", 0);
  config["hidden_size_per_layer_input"] = width;
  if (width == 0) return;
  const TensorView* table = checkpoint.Find("per_layer_token_embd.weight");
  if (table == nullptr || table->shape.size() != 2) {
    keys.Fail("{}: per_layer_token_embd.weight is missing or no matrix",
              checkpoint.path().string());
    return;
  }
  config["vocab_size_per_layer_input"] = table->shape[0];
}

void AddExperts(ConfigKeys& keys, Json& config) {
  const int64_t num_experts = keys.IntOr("expert_count", 0);
  config["enable_moe_block"] = num_experts > 0;
  if (num_experts == 0) return;
  config["num_experts"] = num_experts;
  config["top_k_experts"] = keys.Int("expert_used_count");
  config["moe_intermediate_size"] = keys.Int("expert_feed_forward_length");
}

// The fields of a decoder, a model's or an assistant's.
Result<Json> DecoderConfig(const GgufCheckpoint& checkpoint, std::string_view architecture) {
  const std::string where = checkpoint.path().string();
  ConfigKeys keys(checkpoint, architecture);
  const int64_t num_layers = keys.Int("block_count");
  if (num_layers < 1 || num_layers > kMaxLayers) {
    keys.Fail("{}: block_count {} is outside 1..{}", where, num_layers, kMaxLayers);
  }
  RETURN_IF_ERROR(keys.status());

  Json config;
  ASSIGN_OR_RETURN(config["vocab_size"], VocabularySize(checkpoint));
  config["num_hidden_layers"] = num_layers;
  config["hidden_size"] = keys.Int("embedding_length");
  config["max_position_embeddings"] = keys.Int("context_length");
  config["sliding_window"] = keys.Int("attention.sliding_window");
  config["rms_norm_eps"] = keys.NumberOr("attention.layer_norm_rms_epsilon", 1e-6);
  config["final_logit_softcapping"] = keys.NumberOr("final_logit_softcapping", 0.0);
  config["tie_word_embeddings"] = checkpoint.Find("output.weight") == nullptr;

  const std::vector<int64_t> heads = keys.PerLayer("attention.head_count", num_layers);
  if (std::adjacent_find(heads.begin(), heads.end(), std::not_equal_to<>()) != heads.end()) {
    keys.Fail("{}: attention.head_count differs between layers", where);
  }
  config["num_attention_heads"] = heads.front();
  const std::vector<int64_t> kv_heads = keys.PerLayer("attention.head_count_kv", num_layers);
  config["num_key_value_heads"] = kv_heads.front();
  const int64_t full_head_dim = keys.Int("attention.key_length");
  const int64_t sliding_head_dim = keys.Int("attention.key_length_swa");
  if (keys.Int("attention.value_length") != full_head_dim ||
      keys.Int("attention.value_length_swa") != sliding_head_dim) {
    keys.Fail("{}: keys and values of different length are not Gemma 4's", where);
  }
  const std::vector<int64_t> is_sliding =
      keys.PerLayer("attention.sliding_window_pattern", num_layers);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const bool sliding = is_sliding[layer] != 0;
    config["layer_types"].push_back(sliding ? "sliding_attention" : "full_attention");
    config["per_layer_config"][std::to_string(layer)] = {
        {"head_dim", sliding ? sliding_head_dim : full_head_dim},
        {"num_key_value_heads", kv_heads[layer]}};
  }
  if (is_sliding.back() != 0) keys.Fail("{}: the last layer must attend to all keys", where);

  const int64_t num_shared = keys.IntOr("attention.shared_kv_layers", 0);
  const int64_t first_shared = std::clamp<int64_t>(num_layers - num_shared, 0, num_layers);
  config["num_kv_shared_layers"] = num_shared;
  config["attention_k_eq_v"] = FullLayersHaveNoV(checkpoint, is_sliding, first_shared);
  AddMlp(keys.PerLayer("feed_forward_length", num_layers), first_shared, keys, config);
  AddRope(checkpoint, full_head_dim, keys, config);
  AddPerLayerInputs(checkpoint, keys, config);
  AddExperts(keys, config);
  RETURN_IF_ERROR(keys.status());
  return config;
}

std::string_view ArchitectureOf(const GgufCheckpoint& checkpoint) {
  return checkpoint.String("general.architecture").value_or("");
}

}  // namespace

Result<Json> ConfigFromGguf(const GgufCheckpoint& checkpoint) {
  const std::string where = checkpoint.path().string();
  const std::string_view architecture = ArchitectureOf(checkpoint);
  if (architecture == "clip") {
    return MakeError("{} holds image and audio towers only; name the model it belongs to", where);
  }
  if (architecture == kAssistantArchitecture) {
    return MakeError("{} is a drafting assistant; name its target model instead", where);
  }
  if (architecture != kArchitecture) {
    return MakeError("{}: architecture '{}' is not Gemma 4 ('{}')", where,
                     ShortUtf8(architecture, 80), kArchitecture);
  }
  ASSIGN_OR_RETURN(Json config, DecoderConfig(checkpoint, architecture));
  config["architectures"] = {"Gemma4ForCausalLM"};
  config["model_type"] = "gemma4_text";
  return config;
}

Result<Json> AssistantConfigFromGguf(const GgufCheckpoint& checkpoint) {
  const std::string where = checkpoint.path().string();
  const std::string_view architecture = ArchitectureOf(checkpoint);
  if (architecture != kAssistantArchitecture) {
    return MakeError("{}: architecture '{}' is not a Gemma 4 drafting assistant ('{}')", where,
                     ShortUtf8(architecture, 80), kAssistantArchitecture);
  }
  ConfigKeys keys(checkpoint, architecture);
  Json config;
  config["architectures"] = {"Gemma4AssistantForCausalLM"};
  config["backbone_hidden_size"] = keys.Int("embedding_length_out");
  RETURN_IF_ERROR(keys.status());
  // Converters leave the centroids of an ordered head out.
  config["use_ordered_embeddings"] = false;
  ASSIGN_OR_RETURN(config["text_config"], DecoderConfig(checkpoint, architecture));
  return config;
}

}  // namespace lapidary
