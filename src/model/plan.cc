#include "model/plan.h"

#include <algorithm>
#include <cmath>

namespace lapidary {
namespace {

RopePlan MakeRope(const RopeConfig& config, int head_dim) {
  RopePlan rope;
  rope.head_dim = head_dim;
  rope.theta = config.theta;
  rope.factor = config.factor;
  // int(factor * head_dim // 2) in the reference: the exponent's denominator stays head_dim.
  rope.num_rotary_pairs =
      config.proportional
          ? static_cast<int>(std::floor(config.partial_rotary_factor * head_dim / 2))
          : head_dim / 2;
  return rope;
}

KvEntryPlan MakeKvEntry(const LayerPlan& layer) {
  const int num_rotary_dims = 2 * layer.rope.num_rotary_pairs;
  if (layer.k_is_v && num_rotary_dims < layer.head_dim) {
    return {.value_len = layer.head_dim,
            .key_offset = num_rotary_dims,
            .key_len = layer.head_dim,
            .entry_len = layer.head_dim + num_rotary_dims};
  }
  return {.value_len = layer.head_dim,
          .key_offset = layer.head_dim,
          .key_len = layer.head_dim,
          .entry_len = 2 * layer.head_dim};
}

// The last layer before `first_shared` of the same kind, or -1.
int FindDonor(const std::vector<AttentionKind>& kinds, int first_shared, AttentionKind kind) {
  for (int layer_idx = first_shared - 1; layer_idx >= 0; --layer_idx) {
    if (kinds[layer_idx] == kind) return layer_idx;
  }
  return -1;
}

// Everything but the layers.
ModelPlan MakeFrame(const ModelConfig& config) {
  ModelPlan plan;
  plan.architecture = config.architecture;
  plan.is_multimodal = config.is_multimodal;
  plan.media_tokens = config.media_tokens;
  plan.images_see_both_ways = config.bidirectional_images;
  plan.vocab_size = config.vocab_size;
  plan.hidden_size = config.hidden_size;
  plan.num_layers = config.num_layers;
  plan.max_context = config.max_position_embeddings;
  plan.rms_norm_eps = static_cast<float>(config.rms_norm_eps);
  plan.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  plan.logit_softcap = static_cast<float>(config.final_logit_softcap);
  plan.has_own_head = config.has_own_head;
  plan.first_kv_shared_layer = config.num_layers - config.num_kv_shared_layers;
  for (AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
    KvGroupPlan& group = plan.kv_groups[KvGroupOf(kind)];
    group.kind = kind;
    group.window = kind == AttentionKind::kSliding ? config.sliding_window : 0;
  }
  return plan;
}

// A layer with KV of its own.
LayerPlan MakeLayer(const ModelConfig& config, int layer_idx) {
  LayerPlan layer;
  layer.index = layer_idx;
  layer.kind = config.layer_kinds[layer_idx];
  layer.head_dim = config.head_dims[layer_idx];
  layer.num_heads = config.num_heads;
  layer.num_kv_heads = config.num_kv_heads[layer_idx];
  const bool is_full = layer.kind == AttentionKind::kFull;
  layer.rope = MakeRope(is_full ? config.full_rope : config.sliding_rope, layer.head_dim);
  layer.window = is_full ? 0 : config.sliding_window;
  layer.k_is_v = is_full && config.k_eq_v;
  layer.has_moe = config.moe;
  layer.mlp_width = config.intermediate_size;
  layer.kv_layer = layer_idx;
  layer.kv_entry = MakeKvEntry(layer);
  return layer;
}

}  // namespace

std::vector<float> RopePlan::Frequencies() const {
  std::vector<float> frequencies(num_rotary_pairs);
  for (int pair_idx = 0; pair_idx < num_rotary_pairs; ++pair_idx) {
    const float exponent = static_cast<float>(2 * pair_idx) / static_cast<float>(head_dim);
    const float power = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    frequencies[pair_idx] = 1.0f / power / static_cast<float>(factor);
  }
  return frequencies;
}

Result<ModelPlan> MakeModelPlan(const ModelConfig& config) {
  ModelPlan plan = MakeFrame(config);
  if (config.moe) {
    plan.moe = MoePlan{config.num_experts, config.top_k_experts, config.expert_width};
  }
  if (config.ple_width > 0) plan.ple = PlePlan{config.ple_width, config.ple_vocab_size};

  for (int layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    LayerPlan layer = MakeLayer(config, layer_idx);
    const bool is_shared = layer_idx >= plan.first_kv_shared_layer;
    if (config.double_wide_mlp && is_shared) layer.mlp_width *= 2;
    if (is_shared) {
      const int donor = FindDonor(config.layer_kinds, plan.first_kv_shared_layer, layer.kind);
      if (donor < 0) {
        return MakeError(
            "num_kv_shared_layers {}: layer {} needs a {} layer below layer {} to share KV with",
            config.num_kv_shared_layers, layer_idx, AttentionKindName(layer.kind),
            plan.first_kv_shared_layer);
      }
      const LayerPlan& owner = plan.layers[donor];
      if (owner.head_dim != layer.head_dim || owner.num_kv_heads != layer.num_kv_heads) {
        return MakeError("layer {} shares the KV of layer {}, but their head shapes differ",
                         layer_idx, donor);
      }
      layer.kv_layer = donor;
      layer.kv_entry = owner.kv_entry;
    } else {
      KvGroupPlan& group = plan.kv_groups[KvGroupOf(layer.kind)];
      group.layers.push_back(layer_idx);
      group.reference_values_per_token += int64_t{2} * layer.num_kv_heads * layer.head_dim;
      group.stored_values_per_token += int64_t{layer.num_kv_heads} * layer.kv_entry.entry_len;
    }
    plan.layers.push_back(layer);
  }
  return plan;
}

AssistantPlan MakeAssistantPlan(const AssistantConfig& config) {
  AssistantPlan plan;
  plan.backbone_hidden_size = config.backbone_hidden_size;
  if (config.ordered_embeddings) {
    plan.ordered_head = OrderedHeadPlan{config.num_centroids, config.centroid_top_k};
  }
  plan.decoder = MakeFrame(config.decoder);
  for (int layer_idx = 0; layer_idx < config.decoder.num_layers; ++layer_idx) {
    LayerPlan layer = MakeLayer(config.decoder, layer_idx);
    layer.kv_layer = kNoKvLayer;
    plan.decoder.layers.push_back(layer);
  }
  return plan;
}

Result<AssistantPlan> PairAssistant(AssistantPlan plan, const ModelPlan& target) {
  const auto mismatch = [](std::string_view what, int assistant, int of_target) {
    return MakeError(
        "the assistant does not belong to this model: its {} is {}, the model's {}; name the "
        "model's own assistant",
        what, assistant, of_target);
  };
  if (plan.backbone_hidden_size != target.hidden_size) {
    return mismatch("backbone_hidden_size", plan.backbone_hidden_size, target.hidden_size);
  }
  if (plan.decoder.vocab_size != target.vocab_size) {
    return mismatch("vocab_size", plan.decoder.vocab_size, target.vocab_size);
  }
  plan.kv_donors.clear();
  for (LayerPlan& layer : plan.decoder.layers) {
    const std::vector<int>& owners = target.kv_groups[KvGroupOf(layer.kind)].layers;
    if (owners.empty()) {
      return MakeError(
          "the assistant does not belong to this model: it has a {} attention layer and the model "
          "none; name the model's own assistant",
          AttentionKindName(layer.kind));
    }
    const LayerPlan& donor = target.layers[owners.back()];
    const std::string kind = AttentionKindName(layer.kind);
    if (layer.head_dim != donor.head_dim) {
      return mismatch(kind + " head_dim", layer.head_dim, donor.head_dim);
    }
    if (layer.num_kv_heads != donor.num_kv_heads) {
      return mismatch(kind + " number of KV heads", layer.num_kv_heads, donor.num_kv_heads);
    }
    if (layer.window != donor.window) {
      return mismatch("sliding_window", layer.window, donor.window);
    }
    if (layer.rope != donor.rope) {
      return MakeError(
          "the assistant does not belong to this model: their rope_parameters of {} attention "
          "differ; name the model's own assistant",
          kind);
    }
    layer.k_is_v = donor.k_is_v;
    layer.kv_entry = donor.kv_entry;
    plan.kv_donors.push_back(donor.index);
  }
  return plan;
}

}  // namespace lapidary
