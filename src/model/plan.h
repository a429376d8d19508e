// The model plan: every fact about one Gemma 4 text decoder, derived once from its config and
// immutable.
//
// The loader, the memory planner, `inspect` and the executors read this table and nothing else. A
// layer that reads a donor's KV has no k/v projection, no k/v norm and no cache slot: nothing is
// loaded, computed or stored for it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/kv_entry.h"

namespace lapidary {

// Rotate-half rotary embedding over one head: pair j is (x[j], x[j + head_dim / 2]) and is rotated
// by position * frequency[j]. Pairs at and beyond num_rotary_pairs are left as they are.
struct RopePlan {
  int head_dim = 0;
  int num_rotary_pairs = 0;
  double theta = 0.0;
  double factor = 1.0;

  // frequency[j] = theta^(-2j / head_dim) / factor in float32, rounded as the reference rounds it.
  std::vector<float> Frequencies() const;
  bool operator==(const RopePlan&) const = default;
};

inline constexpr int kNoKvLayer = -1;  // a layer that reads the KV of another decoder

struct LayerPlan {
  int index = 0;
  AttentionKind kind = AttentionKind::kSliding;
  int head_dim = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  RopePlan rope;
  int window = 0;        // keys visible including the query's own; 0: all
  int kv_layer = 0;      // the layer whose KV this one reads: its own index, or its donor's
  bool k_is_v = false;   // V comes from the K projection (no v_proj)
  KvEntryPlan kv_entry;  // of kv_layer
  int mlp_width = 0;     // dense gated MLP
  bool has_moe = false;

  bool owns_kv() const { return kv_layer == index; }
  int heads_per_kv_head() const { return num_heads / num_kv_heads; }
  // Heads of [q; k; v], of what the layer has of them.
  int num_qkv_heads() const {
    return num_heads + (owns_kv() ? num_kv_heads * (k_is_v ? 1 : 2) : 0);
  }
};

// All layers of one attention kind that own KV share page tables: a page holds some tokens of each.
struct KvGroupPlan {
  AttentionKind kind = AttentionKind::kSliding;
  int window = 0;                          // 0: unlimited
  std::vector<int> layers;                 // owning layers, in order
  int64_t reference_values_per_token = 0;  // K and V of every owning layer
  int64_t stored_values_per_token = 0;     // as KvEntryPlan stores them
};

inline int KvGroupOf(AttentionKind kind) {
  return kind == AttentionKind::kSliding ? kSlidingGroup : kFullGroup;
}

struct MoePlan {
  int num_experts = 0;
  int top_k = 0;
  int expert_width = 0;
};

struct PlePlan {
  int width = 0;       // values per layer and token
  int vocab_size = 0;  // rows of the table
};

struct ModelPlan {
  std::string architecture;
  bool is_multimodal = false;
  std::optional<MediaTokens> media_tokens;  // of multimodal models
  bool images_see_both_ways = false;        // rows of an image see each other, in sliding layers
  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;
  int max_context = 0;
  float rms_norm_eps = 1e-6f;
  float embedding_scale = 1.0f;   // sqrt(hidden_size)
  float logit_softcap = 0.0f;     // 0: none
  bool has_own_head = false;      // lm_head; false: the embeddings are the head too
  int first_kv_shared_layer = 0;  // num_layers when no layer shares
  std::vector<LayerPlan> layers;
  std::array<KvGroupPlan, kNumKvGroups> kv_groups;  // [kSlidingGroup], [kFullGroup]
  std::optional<MoePlan> moe;
  std::optional<PlePlan> ple;

  bool has_kv_sharing() const { return first_kv_shared_layer < num_layers; }
};

Result<ModelPlan> MakeModelPlan(const ModelConfig& config);

// A head in two steps: the best `top_k` of the centroids, then the tokens that belong to them.
// Every centroid has the same number of tokens.
struct OrderedHeadPlan {
  int num_centroids = 0;
  int top_k = 0;
};

// A drafting assistant: a small decoder whose layers have queries only. It reads the KV of its
// target, layer by layer that of the last owner of the same kind, and writes none.
//
//   u = [E_target[token] * scale | g]      g: the target's hidden row behind its final norm
//   z = W_pre u; decoder layers; y = rmsnorm(z); logits = head(y), no softcap; g' = W_post y
struct AssistantPlan {
  ModelPlan decoder;  // kv_layer is kNoKvLayer throughout; embed_tokens is the head alone
  int backbone_hidden_size = 0;
  std::optional<OrderedHeadPlan> ordered_head;  // none: a dense head
  // Once paired: by layer of the decoder, the target's layer whose KV it reads.
  std::vector<int> kv_donors;

  int tokens_per_centroid() const { return decoder.vocab_size / ordered_head->num_centroids; }
};

AssistantPlan MakeAssistantPlan(const AssistantConfig& config);

// The plan with its donors, in the form in which the target caches them; an error where the two do
// not fit.
Result<AssistantPlan> PairAssistant(AssistantPlan plan, const ModelPlan& target);

}  // namespace lapidary
