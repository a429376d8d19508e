#include "towers/vision_tower.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "model/plan.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/rope.h"
#include "towers/tower_ops.h"

namespace lapidary::cpu {
namespace {

constexpr float kLayerNormEps = 1e-5f;  // a constant of the architecture, not of the config

// h += x
void AddRows(const std::vector<float>& x, std::vector<float>& h) {
  for (size_t idx = 0; idx < h.size(); ++idx) h[idx] += x[idx];
}

}  // namespace

struct VisionTower::Rotary {
  RotaryHead half;  // each half of a head turns by itself
  RopeTable columns;
  RopeTable rows;

  Rotary(const VisionTowerPlan& plan, const ImagePatches& grid)
      : half{.head_dim = plan.head_dim / 2, .num_rotary_pairs = plan.head_dim / 4} {
    const RopePlan rope{.head_dim = half.head_dim,
                        .num_rotary_pairs = half.num_rotary_pairs,
                        .theta = plan.rope_theta};
    columns.num_rotary_pairs = rows.num_rotary_pairs = half.num_rotary_pairs;
    std::vector<int32_t> positions(std::max(grid.grid_width, grid.grid_height));
    std::iota(positions.begin(), positions.end(), 0);
    columns.Fill(rope.Frequencies(), std::span(positions).first(grid.grid_width));
    rows.Fill(rope.Frequencies(), std::span(positions).first(grid.grid_height));
  }

  void Apply(int column, int row, float* head) const {
    ApplyRope(half, columns.CosRow(column), columns.SinRow(column), head);
    ApplyRope(half, rows.CosRow(row), rows.SinRow(row), head + half.head_dim);
  }
};

VisionTower::VisionTower(const TowersPlan& plan, const TowerTensors& tensors)
    : plan_(*plan.vision_tower), grid_(plan.grid) {
  const std::string prefix = "vision_tower.";
  input_proj_ = tensors.Matrix(prefix + "patch_embedder.input_proj.weight");
  positions_ = tensors.Matrix(prefix + "patch_embedder.position_embedding_table");
  for (int layer_idx = 0; layer_idx < plan_.num_layers; ++layer_idx) {
    const std::string name = fmt::format("{}encoder.layers.{}.", prefix, layer_idx);
    Layer& layer = layers_.emplace_back();
    layer.input_norm = tensors.Vector(name + "input_layernorm.weight");
    layer.post_attention_norm = tensors.Vector(name + "post_attention_layernorm.weight");
    layer.pre_mlp_norm = tensors.Vector(name + "pre_feedforward_layernorm.weight");
    layer.post_mlp_norm = tensors.Vector(name + "post_feedforward_layernorm.weight");
    layer.q_norm = tensors.Vector(name + "self_attn.q_norm.weight");
    layer.k_norm = tensors.Vector(name + "self_attn.k_norm.weight");
    layer.q_proj = tensors.Clipped(name + "self_attn.q_proj");
    layer.k_proj = tensors.Clipped(name + "self_attn.k_proj");
    layer.v_proj = tensors.Clipped(name + "self_attn.v_proj");
    layer.o_proj = tensors.Clipped(name + "self_attn.o_proj");
    layer.gate_proj = tensors.Clipped(name + "mlp.gate_proj");
    layer.up_proj = tensors.Clipped(name + "mlp.up_proj");
    layer.down_proj = tensors.Clipped(name + "mlp.down_proj");
  }
  if (plan_.is_standardized) {
    std_bias_ = tensors.Vector(prefix + "std_bias");
    std_scale_ = tensors.Vector(prefix + "std_scale");
  }
  projection_ = tensors.Matrix("embed_vision.embedding_projection.weight");
}

std::vector<float> VisionTower::Embed(const ImagePatches& patches, ThreadPool& threads) const {
  std::vector<float> pixels = patches.values;
  for (float& value : pixels) value = 2.0f * (value - 0.5f);
  std::vector<float> hidden = PlainLinear(pixels, patches.num_patches(), input_proj_, threads);
  std::vector<float> by_column(plan_.hidden);
  std::vector<float> by_row(plan_.hidden);
  for (int patch = 0; patch < patches.num_patches(); ++patch) {
    GatherRow(positions_, patch % patches.grid_width, 1.0f, by_column.data());
    GatherRow(positions_, plan_.num_positions + patch / patches.grid_width, 1.0f, by_row.data());
    float* row = hidden.data() + int64_t{patch} * plan_.hidden;
    for (int idx = 0; idx < plan_.hidden; ++idx) row[idx] += by_column[idx] + by_row[idx];
  }
  return hidden;
}

std::vector<float> VisionTower::Attend(const Layer& layer, const std::vector<float>& normed,
                                       const ImagePatches& grid, const Rotary& rotary,
                                       ThreadPool& threads) const {
  const int64_t num_patches = grid.num_patches();
  const int head_dim = plan_.head_dim;
  const int64_t row_len = int64_t{plan_.num_heads} * head_dim;
  std::vector<float> queries = ClippedLinear(normed, num_patches, layer.q_proj, threads);
  const std::vector<float> keys = ClippedLinear(normed, num_patches, layer.k_proj, threads);
  const std::vector<float> values = ClippedLinear(normed, num_patches, layer.v_proj, threads);

  // Entries [patch, head, V | K], as the decoder's cache has them.
  const KvEntryPlan entry{.value_len = head_dim,
                          .key_offset = head_dim,
                          .key_len = head_dim,
                          .entry_len = 2 * head_dim};
  std::vector<float> entries(2 * num_patches * row_len);
  threads.ParallelFor(num_patches, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t patch = begin; patch < end; ++patch) {
      const int column = static_cast<int>(patch % grid.grid_width);
      const int row = static_cast<int>(patch / grid.grid_width);
      for (int head = 0; head < plan_.num_heads; ++head) {
        const int64_t at = patch * row_len + int64_t{head} * head_dim;
        float* query = queries.data() + at;
        float* value = entries.data() + 2 * at;
        float* key = value + head_dim;
        RmsNorm(query, layer.q_norm.data(), plan_.eps, head_dim, query);
        RmsNorm(keys.data() + at, layer.k_norm.data(), plan_.eps, head_dim, key);
        RmsNorm(values.data() + at, nullptr, plan_.eps, head_dim, value);
        rotary.Apply(column, row, query);
        rotary.Apply(column, row, key);
      }
    }
  });

  constexpr int64_t kRowsPerTask = 48;  // their scores stay in the caches
  const int64_t num_blocks = (num_patches + kRowsPerTask - 1) / kRowsPerTask;
  std::vector<float> attended(num_patches * row_len);
  std::vector<AttentionScratch> scratch(threads.num_threads());
  threads.ParallelFor(num_blocks * plan_.num_heads, 1, [&](int64_t begin, int64_t end, int thread) {
    std::vector<AttentionRow> rows;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task % plan_.num_heads;
      const int64_t first = task / plan_.num_heads * kRowsPerTask;
      rows.clear();
      for (int64_t patch = first; patch < std::min(first + kRowsPerTask, num_patches); ++patch) {
        const int64_t at = patch * row_len + head * head_dim;
        rows.push_back({queries.data() + at, attended.data() + at, 0, num_patches});
      }
      const KeySegment segment{entries.data() + 2 * head * head_dim, 2 * row_len, num_patches};
      AttendRows({&segment, 1}, entry, /*num_heads=*/1, rows, scratch[thread]);
    }
  });
  return ClippedLinear(attended, num_patches, layer.o_proj, threads);
}

std::vector<float> VisionTower::Pool(const std::vector<float>& hidden,
                                     const ImagePatches& grid) const {
  const int kernel = grid_.kernel;
  const int cells_wide = grid.grid_width / kernel;
  const int num_cells = cells_wide * (grid.grid_height / kernel);
  const float root = std::sqrt(static_cast<float>(plan_.hidden));
  const float share = 1.0f / static_cast<float>(kernel * kernel);
  std::vector<float> cells(int64_t{num_cells} * plan_.hidden);
  for (int cell = 0; cell < num_cells; ++cell) {
    float* out = cells.data() + int64_t{cell} * plan_.hidden;
    for (int idx = 0; idx < kernel * kernel; ++idx) {
      const int row = cell / cells_wide * kernel + idx / kernel;
      const int column = cell % cells_wide * kernel + idx % kernel;
      const int64_t patch = int64_t{row} * grid.grid_width + column;
      MulAddTo(hidden.data() + patch * plan_.hidden, share, plan_.hidden, out);
    }
    Scale(out, root, plan_.hidden, out);
    if (!plan_.is_standardized) continue;
    for (int idx = 0; idx < plan_.hidden; ++idx) {
      out[idx] = (out[idx] - std_bias_[idx]) * std_scale_[idx];
    }
  }
  return cells;
}

std::vector<float> VisionTower::Encode(const ImagePatches& patches, ThreadPool& threads) const {
  CHECK_EQ(patches.patch, grid_.patch);
  CHECK_LE(std::max(patches.grid_width, patches.grid_height), plan_.num_positions);
  const int64_t num_patches = patches.num_patches();
  const Rotary rotary(plan_, patches);
  std::vector<float> hidden = Embed(patches, threads);
  for (const Layer& layer : layers_) {
    const auto normed = NormRows(hidden, layer.input_norm, plan_.eps, plan_.hidden);
    const auto attended = Attend(layer, normed, patches, rotary, threads);
    AddRows(NormRows(attended, layer.post_attention_norm, plan_.eps, plan_.hidden), hidden);

    const auto mlp_input = NormRows(hidden, layer.pre_mlp_norm, plan_.eps, plan_.hidden);
    auto gate = ClippedLinear(mlp_input, num_patches, layer.gate_proj, threads);
    const auto up = ClippedLinear(mlp_input, num_patches, layer.up_proj, threads);
    GeluMul(gate.data(), up.data(), static_cast<int64_t>(gate.size()));
    const auto down = ClippedLinear(gate, num_patches, layer.down_proj, threads);
    AddRows(NormRows(down, layer.post_mlp_norm, plan_.eps, plan_.hidden), hidden);
  }
  const std::vector<float> cells = Pool(hidden, patches);
  const std::vector<float> normed = NormRows(cells, {}, plan_.eps, plan_.hidden);
  return PlainLinear(normed, static_cast<int64_t>(normed.size()) / plan_.hidden, projection_,
                     threads);
}

CellEmbedder::CellEmbedder(const TowersPlan& plan, const TowerTensors& tensors)
    : plan_(*plan.cell_embedder) {
  const std::string prefix = "vision_embedder.";
  const auto affine = [&](const std::string& name) -> Affine {
    return {tensors.Vector(prefix + name + ".weight"), tensors.Vector(prefix + name + ".bias")};
  };
  input_norm_ = affine("patch_ln1");
  dense_norm_ = affine("patch_ln2");
  position_norm_ = affine("pos_norm");
  dense_ = tensors.Matrix(prefix + "patch_dense.weight");
  dense_bias_ = tensors.Vector(prefix + "patch_dense.bias");
  positions_ = tensors.Matrix(prefix + "pos_embedding");
  projection_ = tensors.Matrix("embed_vision.embedding_projection.weight");
}

std::vector<float> CellEmbedder::Encode(const ImagePatches& cells, ThreadPool& threads) const {
  CHECK_LE(std::max(cells.grid_width, cells.grid_height), plan_.num_positions);
  const int64_t dim = plan_.hidden;
  const auto norm = [](const Affine& affine, float* row) {
    LayerNorm(row, affine.weight.data(), affine.bias.data(), kLayerNormEps,
              static_cast<int64_t>(affine.weight.size()));
  };
  std::vector<float> pixels = cells.values;
  for (int cell = 0; cell < cells.num_patches(); ++cell) {
    norm(input_norm_, pixels.data() + int64_t{cell} * cells.patch_values());
  }
  std::vector<float> hidden = PlainLinear(pixels, cells.num_patches(), dense_, threads);
  std::vector<float> position(dim);
  for (int cell = 0; cell < cells.num_patches(); ++cell) {
    float* row = hidden.data() + cell * dim;
    for (int64_t idx = 0; idx < dim; ++idx) row[idx] += dense_bias_[idx];
    norm(dense_norm_, row);
    std::vector<float> both(dim);
    GatherRow(positions_, 2 * (cell % cells.grid_width), 1.0f, both.data());
    GatherRow(positions_, 2 * (cell / cells.grid_width) + 1, 1.0f, position.data());
    for (int64_t idx = 0; idx < dim; ++idx) row[idx] += both[idx] + position[idx];
    norm(position_norm_, row);
  }
  const std::vector<float> normed = NormRows(hidden, {}, plan_.eps, dim);
  return PlainLinear(normed, cells.num_patches(), projection_, threads);
}

}  // namespace lapidary::cpu
