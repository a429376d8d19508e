// config.json as written by transformers, read into plain values with defaults applied.
//
// Accepts the text-only form (fields at the top level) and the multimodal wrappers (under
// text_config), and both ways to say that full-attention layers differ: flat `global_head_dim` /
// `num_global_key_value_heads` (transformers < 5.15) and `per_layer_config` (>= 5.15). Everything
// is range-checked; what Lapidary does not implement (a quantised file, another activation) is
// refused here. The derived facts live in ModelPlan (plan.h); nothing else should need this struct.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fields.h"
#include "base/result.h"

namespace lapidary {

enum class AttentionKind { kSliding, kFull };

const char* AttentionKindName(AttentionKind kind);

// Rotary embedding of one attention kind, as the file states it.
struct RopeConfig {
  bool proportional = false;           // rope_type "proportional", else "default"
  double theta = 10000.0;              // base of the frequencies
  double partial_rotary_factor = 1.0;  // share of the pairs that turn (proportional only)
  double factor = 1.0;                 // divides the frequencies (proportional only)
};

// Ids that stand for pictures and sounds in a prompt, and those put around them.
struct MediaTokens {
  int image = 258880;
  int audio = 258881;
  int video = 258884;
  int begin_image = 255999;
  int end_image = 258882;
  int begin_audio = 256000;
  int end_audio = 258883;
  int pad = 0;  // what rows filled from a tower count as where a token is asked for
};

struct ModelConfig {
  std::string architecture;  // e.g. "Gemma4ForCausalLM"
  bool is_multimodal = false;
  std::optional<MediaTokens> media_tokens;  // multimodal only
  bool bidirectional_images = false;

  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int intermediate_size = 0;
  int max_position_embeddings = 0;
  int sliding_window = 0;
  double rms_norm_eps = 1e-6;
  double final_logit_softcap = 0.0;  // 0: none
  bool has_own_head = false;         // tie_word_embeddings false

  // Per layer, size num_layers.
  std::vector<AttentionKind> layer_kinds;
  std::vector<int> head_dims;
  std::vector<int> num_kv_heads;

  RopeConfig sliding_rope;
  RopeConfig full_rope;

  bool k_eq_v = false;  // full layers only
  int num_kv_shared_layers = 0;
  bool double_wide_mlp = false;

  int ple_width = 0;  // hidden_size_per_layer_input; 0: no per-layer embeddings
  int ple_vocab_size = 0;

  bool moe = false;
  int num_experts = 0;
  int top_k_experts = 0;
  int expert_width = 0;
};

// Of a drafting assistant: a small decoder without keys of its own, between two projections from
// and to its target's hidden size.
struct AssistantConfig {
  ModelConfig decoder;           // num_kv_shared_layers is all of them
  int backbone_hidden_size = 0;  // of the target
  bool ordered_embeddings = false;
  // With ordered_embeddings only; other files carry them unused.
  int num_centroids = 0;
  int centroid_top_k = 0;
};

// `name` is used in messages (a path, or "preset e2b").
Result<ModelConfig> ParseModelConfig(const Json& config, std::string_view name);
Result<ModelConfig> ParseModelConfig(std::string_view text, std::string_view name);
Result<AssistantConfig> ParseAssistantConfig(const Json& config, std::string_view name);

}  // namespace lapidary
