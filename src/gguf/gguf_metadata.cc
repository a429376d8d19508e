#include "gguf/gguf_metadata.h"

#include <algorithm>

namespace lapidary {
namespace {

// The first layer of a kind, for what all of them share; any layer where there is none.
const LayerPlan& LayerOf(const ModelPlan& plan, AttentionKind kind) {
  const auto it = std::find_if(plan.layers.begin(), plan.layers.end(),
                               [&](const LayerPlan& layer) { return layer.kind == kind; });
  return it == plan.layers.end() ? plan.layers.back() : *it;
}

// What every decoder has, a model's and an assistant's.
void AddDecoder(const ModelPlan& plan, std::string_view architecture, GgufWriter& writer) {
  const auto key = [&](const char* name) { return fmt::format("{}.{}", architecture, name); };
  const auto add = [&](const char* name, int value) {
    writer.AddU32(key(name), static_cast<uint32_t>(value));
  };
  const LayerPlan& sliding = LayerOf(plan, AttentionKind::kSliding);
  const LayerPlan& full = LayerOf(plan, AttentionKind::kFull);
  writer.AddString("general.architecture", architecture);
  add("block_count", plan.num_layers);
  add("context_length", plan.max_context);
  add("embedding_length", plan.hidden_size);
  add("vocab_size", plan.vocab_size);
  add("attention.head_count", full.num_heads);
  add("attention.key_length", full.head_dim);
  add("attention.value_length", full.head_dim);
  add("attention.key_length_swa", sliding.head_dim);
  add("attention.value_length_swa", sliding.head_dim);
  add("attention.sliding_window", std::max(sliding.window, 1));
  add("attention.shared_kv_layers", plan.num_layers - plan.first_kv_shared_layer);
  add("rope.dimension_count", full.head_dim);
  add("rope.dimension_count_swa", sliding.head_dim);
  add("embedding_length_per_layer_input", plan.ple ? plan.ple->width : 0);
  if (plan.moe) {
    add("expert_count", plan.moe->num_experts);
    add("expert_used_count", plan.moe->top_k);
    add("expert_feed_forward_length", plan.moe->expert_width);
  }
  writer.AddF32(key("rope.freq_base"), static_cast<float>(full.rope.theta));
  writer.AddF32(key("rope.freq_base_swa"), static_cast<float>(sliding.rope.theta));
  writer.AddF32(key("attention.layer_norm_rms_epsilon"), plan.rms_norm_eps);
  if (plan.logit_softcap != 0.0f) {
    writer.AddF32(key("final_logit_softcapping"), plan.logit_softcap);
  }
  std::vector<uint32_t> widths, kv_heads;
  std::vector<bool> is_sliding;
  for (const LayerPlan& layer : plan.layers) {
    widths.push_back(static_cast<uint32_t>(layer.mlp_width));
    kv_heads.push_back(static_cast<uint32_t>(layer.num_kv_heads));
    is_sliding.push_back(layer.kind == AttentionKind::kSliding);
  }
  writer.AddU32s(key("feed_forward_length"), widths);
  writer.AddU32s(key("attention.head_count_kv"), kv_heads);
  writer.AddBools(key("attention.sliding_window_pattern"), is_sliding);
}

}  // namespace

void AddPlanMetadata(const ModelPlan& plan, GgufWriter& writer) {
  AddDecoder(plan, "gemma4", writer);
}

void AddPlanMetadata(const AssistantPlan& plan, GgufWriter& writer) {
  AddDecoder(plan.decoder, "gemma4-assistant", writer);
  writer.AddU32("gemma4-assistant.embedding_length_out",
                static_cast<uint32_t>(plan.backbone_hidden_size));
  writer.AddU32("gemma4-assistant.nextn_predict_layers",
                static_cast<uint32_t>(plan.decoder.num_layers));
}

std::vector<float> RopeFactors(const ModelPlan& plan) {
  const RopePlan& rope = LayerOf(plan, AttentionKind::kFull).rope;
  std::vector<float> factors(rope.head_dim / 2, 1e30f);
  std::fill_n(factors.begin(), rope.num_rotary_pairs, 1.0f);
  return factors;
}

}  // namespace lapidary
