#include "towers/tower_specs.h"

#include "media/log_mel.h"

namespace lapidary {
namespace {

class SpecList {
 public:
  explicit SpecList(bool is_clipped) : is_clipped_(is_clipped) {}

  void Add(std::string name, std::vector<int64_t> shape, TensorRole role) {
    specs_.push_back({std::move(name), std::move(shape), TensorComponent::kTower, role});
  }
  // X.linear.weight, with its bounds beside it.
  void AddClipped(const std::string& name, int64_t out, int64_t in) {
    Add(name + ".linear.weight", {out, in}, TensorRole::kMatrix);
    if (!is_clipped_) return;
    for (const char* side : {"input", "output"}) {
      Add(fmt::format("{}.{}_min", name, side), {}, TensorRole::kClipMin);
      Add(fmt::format("{}.{}_max", name, side), {}, TensorRole::kClipMax);
    }
  }
  std::vector<TensorSpec> Take() { return std::move(specs_); }

 private:
  const bool is_clipped_;
  std::vector<TensorSpec> specs_;
};

using enum TensorRole;

void AddVisionTower(const VisionTowerPlan& tower, const PatchGrid& grid, SpecList& list) {
  const std::string prefix = "vision_tower.";
  const int64_t hidden = tower.hidden;
  const int64_t heads = int64_t{tower.num_heads} * tower.head_dim;
  list.Add(prefix + "patch_embedder.input_proj.weight", {hidden, 3 * grid.patch * grid.patch},
           kMatrix);
  list.Add(prefix + "patch_embedder.position_embedding_table", {2, tower.num_positions, hidden},
           kOffset);
  for (int layer_idx = 0; layer_idx < tower.num_layers; ++layer_idx) {
    const std::string layer = fmt::format("{}encoder.layers.{}.", prefix, layer_idx);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm",
                             "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
      list.Add(fmt::format("{}{}.weight", layer, norm), {hidden}, kNorm);
    }
    for (const char* projection : {"q_proj", "k_proj", "v_proj"}) {
      list.AddClipped(fmt::format("{}self_attn.{}", layer, projection), heads, hidden);
    }
    list.AddClipped(layer + "self_attn.o_proj", hidden, heads);
    list.Add(layer + "self_attn.q_norm.weight", {tower.head_dim}, kQkNorm);
    list.Add(layer + "self_attn.k_norm.weight", {tower.head_dim}, kQkNorm);
    list.AddClipped(layer + "mlp.gate_proj", tower.mlp_width, hidden);
    list.AddClipped(layer + "mlp.up_proj", tower.mlp_width, hidden);
    list.AddClipped(layer + "mlp.down_proj", hidden, tower.mlp_width);
  }
  if (tower.is_standardized) {
    list.Add(prefix + "std_bias", {hidden}, kOffset);
    list.Add(prefix + "std_scale", {hidden}, kScale);
  }
}

void AddLayerNorm(const std::string& name, int64_t dim, SpecList& list) {
  list.Add(name + ".weight", {dim}, kNorm);
  list.Add(name + ".bias", {dim}, kOffset);
}

void AddCellEmbedder(const CellEmbedderPlan& embedder, const PatchGrid& grid, SpecList& list) {
  const std::string prefix = "vision_embedder.";
  const int64_t cell_values = int64_t{3} * grid.cell() * grid.cell();
  AddLayerNorm(prefix + "patch_ln1", cell_values, list);
  list.Add(prefix + "patch_dense.weight", {embedder.hidden, cell_values}, kMatrix);
  list.Add(prefix + "patch_dense.bias", {embedder.hidden}, kOffset);
  AddLayerNorm(prefix + "patch_ln2", embedder.hidden, list);
  list.Add(prefix + "pos_embedding", {embedder.num_positions, 2, embedder.hidden}, kOffset);
  AddLayerNorm(prefix + "pos_norm", embedder.hidden, list);
}

void AddAudioLayer(const AudioTowerPlan& tower, const std::string& layer, SpecList& list) {
  const int64_t hidden = tower.hidden;
  for (const char* half : {"feed_forward1.", "feed_forward2."}) {
    list.Add(layer + half + "pre_layer_norm.weight", {hidden}, kNorm);
    list.Add(layer + half + "post_layer_norm.weight", {hidden}, kNorm);
    list.AddClipped(layer + half + "ffw_layer_1", 4 * hidden, hidden);
    list.AddClipped(layer + half + "ffw_layer_2", hidden, 4 * hidden);
  }
  for (const char* norm : {"norm_pre_attn", "norm_post_attn", "norm_out"}) {
    list.Add(fmt::format("{}{}.weight", layer, norm), {hidden}, kNorm);
  }
  for (const char* projection : {"q_proj", "k_proj", "v_proj", "post"}) {
    list.AddClipped(fmt::format("{}self_attn.{}", layer, projection), hidden, hidden);
  }
  list.Add(layer + "self_attn.relative_k_proj.weight", {hidden, hidden}, kMatrix);
  list.Add(layer + "self_attn.per_dim_scale", {tower.head_dim()}, kOffset);
  list.Add(layer + "lconv1d.pre_layer_norm.weight", {hidden}, kNorm);
  list.Add(layer + "lconv1d.conv_norm.weight", {hidden}, kNorm);
  list.AddClipped(layer + "lconv1d.linear_start", 2 * hidden, hidden);
  list.AddClipped(layer + "lconv1d.linear_end", hidden, hidden);
  list.Add(layer + "lconv1d.depthwise_conv1d.weight", {hidden, 1, tower.conv_kernel}, kMatrix);
}

void AddAudioTower(const AudioTowerPlan& tower, SpecList& list) {
  const std::string prefix = "audio_tower.";
  const std::string subsample = prefix + "subsample_conv_projection.";
  const auto [first, second] = tower.channels;
  list.Add(subsample + "layer0.conv.weight", {first, 1, 3, 3}, kMatrix);
  list.Add(subsample + "layer0.norm.weight", {first}, kNorm);
  list.Add(subsample + "layer1.conv.weight", {second, first, 3, 3}, kMatrix);
  list.Add(subsample + "layer1.norm.weight", {second}, kNorm);
  list.Add(subsample + "input_proj_linear.weight",
           {tower.hidden, int64_t{kNumMelBands} / 4 * second}, kMatrix);
  for (int layer_idx = 0; layer_idx < tower.num_layers; ++layer_idx) {
    AddAudioLayer(tower, fmt::format("{}layers.{}.", prefix, layer_idx), list);
  }
  list.Add(prefix + "output_proj.weight", {tower.output_dim, tower.hidden}, kMatrix);
  list.Add(prefix + "output_proj.bias", {tower.output_dim}, kOffset);
}

}  // namespace

std::vector<TensorSpec> VisionTensors(const TowersPlan& plan) {
  SpecList list(plan.vision_tower && plan.vision_tower->is_clipped);
  if (plan.vision_tower) AddVisionTower(*plan.vision_tower, plan.grid, list);
  if (plan.cell_embedder) AddCellEmbedder(*plan.cell_embedder, plan.grid, list);
  if (plan.has_vision()) {
    const int64_t hidden =
        plan.vision_tower ? plan.vision_tower->hidden : plan.cell_embedder->hidden;
    list.Add("embed_vision.embedding_projection.weight", {plan.text_hidden, hidden}, kMatrix);
  }
  return list.Take();
}

std::vector<TensorSpec> AudioTensors(const TowersPlan& plan) {
  SpecList list(plan.audio_tower && plan.audio_tower->is_clipped);
  if (plan.audio_tower) AddAudioTower(*plan.audio_tower, list);
  if (plan.has_audio()) {
    const int64_t dim =
        plan.audio_tower ? plan.audio_tower->output_dim : plan.wave_embedder->num_samples;
    list.Add("embed_audio.embedding_projection.weight", {plan.text_hidden, dim}, kMatrix);
  }
  return list.Take();
}

}  // namespace lapidary
