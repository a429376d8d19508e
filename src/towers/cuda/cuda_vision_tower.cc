#include "towers/cuda/cuda_vision_tower.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/result.h"
#include "towers/cuda/tower_memory.h"

namespace lapidary::cuda {
namespace {

constexpr const char* kPurpose = "encoding images";
constexpr int kVisionParts = 3;  // q, k, v

int RoundUp(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Cosine and sine of position * theta^(-2 j / half), j < half / 2.
std::vector<float2> MakeRopeTable(const VisionTowerPlan& tower) {
  const int half = tower.head_dim / 2;
  const int pairs = half / 2;
  std::vector<float2> table(int64_t{tower.num_positions} * pairs);
  for (int pair = 0; pair < pairs; ++pair) {
    const double frequency = std::pow(tower.rope_theta, -2.0 * pair / half);
    for (int64_t position = 0; position < tower.num_positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      table[position * pairs + pair] = {static_cast<float>(std::cos(angle)),
                                        static_cast<float>(std::sin(angle))};
    }
  }
  return table;
}

void AddPlaces(const ImagePatches& image, std::vector<GridPlace>& places) {
  for (int row = 0; row < image.grid_height; ++row) {
    for (int column = 0; column < image.grid_width; ++column) places.push_back({column, row});
  }
}

// One image directly behind the other.
const float* StagePixels(std::span<const ImagePatches* const> images, StagedArray& staged) {
  int64_t count = 0;
  for (const ImagePatches* image : images) count += std::ssize(image->values);
  const StagedArray::Place<float> pixels = staged.Reserve<float>(count);
  float* to = pixels.host;
  for (const ImagePatches* image : images) {
    to = std::copy(image->values.begin(), image->values.end(), to);
  }
  return pixels.device;
}

}  // namespace

Status VisionTowerSupport(const TowersPlan& plan) {
  const VisionTowerPlan& tower = *plan.vision_tower;
  RETURN_IF_ERROR(TowerRowsSupports(tower.hidden));
  RETURN_IF_ERROR(PatchAttentionSupports(tower.head_dim));
  RETURN_IF_ERROR(PatchHeadsSupports(tower.num_heads, tower.head_dim));
  if (3 * plan.grid.patch * plan.grid.patch % 8 != 0) {
    return MakeError("patches of {0} x {0} pixels", plan.grid.patch);
  }
  return {};
}

CudaVisionTower::CudaVisionTower(const TowersPlan& plan, const TowerTensors& tensors,
                                 TowerDevice& device)
    : plan_(plan),
      tower_(*plan_.vision_tower),
      mlp_width_(RoundUp(tower_.mlp_width, 8)),
      device_(device) {
  const std::string prefix = "vision_tower.";
  input_proj_ = device.UploadMatrix(tensors.Matrix(prefix + "patch_embedder.input_proj.weight"));
  positions_ =
      device.UploadMatrix(tensors.Matrix(prefix + "patch_embedder.position_embedding_table"));
  rope_ = device.UploadValues(MakeRopeTable(tower_));
  for (int layer_idx = 0; layer_idx < tower_.num_layers; ++layer_idx) {
    const std::string name = fmt::format("{}encoder.layers.{}.", prefix, layer_idx);
    const auto vector = [&](const char* what) {
      return device.UploadVector(tensors.Vector(name + what + ".weight"));
    };
    const auto clipped = [&](const char* what) { return tensors.Clipped(name + what); };
    layers_.push_back(
        {.input_norm = vector("input_layernorm"),
         .post_attention_norm = vector("post_attention_layernorm"),
         .pre_mlp_norm = vector("pre_feedforward_layernorm"),
         .post_mlp_norm = vector("post_feedforward_layernorm"),
         .q_norm = vector("self_attn.q_norm"),
         .k_norm = vector("self_attn.k_norm"),
         .qkv = device.UploadGroup({clipped("self_attn.q_proj"), clipped("self_attn.k_proj"),
                                    clipped("self_attn.v_proj")}),
         .o_proj = device.UploadLinear(clipped("self_attn.o_proj")),
         .gate_up =
             device.UploadGroup({clipped("mlp.gate_proj"), clipped("mlp.up_proj")}, mlp_width_),
         .down_proj = device.UploadLinear(clipped("mlp.down_proj"), 0, mlp_width_)});
  }
  if (tower_.is_standardized) {
    std_bias_ = device.UploadVector(tensors.Vector(prefix + "std_bias"));
    std_scale_ = device.UploadVector(tensors.Vector(prefix + "std_scale"));
  }
  projection_ = device.UploadMatrix(tensors.Matrix("embed_vision.embedding_projection.weight"));

  const TowerBuffers buffers = PlanVisionTower(plan_);
  staged_ = StagedArray(buffers.staged, kPurpose);
  hidden_ = DeviceBuffer(buffers.hidden, kPurpose);
  x_ = DeviceBuffer(buffers.x, kPurpose);
  wide_ = DeviceBuffer(buffers.wide, kPurpose);
  gated_ = DeviceBuffer(buffers.gated, kPurpose);
  heads_ = DeviceBuffer(buffers.heads, kPurpose);
  added_ = DeviceBuffer(buffers.added, kPurpose);
  out_ = DeviceBuffer(buffers.out, kPurpose);
}

CudaVisionTower::Batch CudaVisionTower::Stage(std::span<const ImagePatches* const> images) {
  Batch batch;
  std::vector<int> rows_of;
  std::vector<GridPlace> places;
  std::vector<PooledCell> cells;
  const int kernel = plan_.grid.kernel;
  for (const ImagePatches* image : images) {
    CHECK_EQ(image->patch, plan_.grid.patch);
    CHECK_LE(std::max(image->grid_width, image->grid_height), tower_.num_positions);
    CHECK_EQ(image->patch_values(), input_proj_.cols);
    for (int row = 0; row + kernel <= image->grid_height; row += kernel) {
      for (int column = 0; column + kernel <= image->grid_width; column += kernel) {
        cells.push_back({batch.patches + row * image->grid_width + column, image->grid_width});
      }
    }
    AddPlaces(*image, places);
    rows_of.push_back(image->num_patches());
    batch.patches += image->num_patches();
  }
  CHECK_LE(batch.patches, kMaxTowerPatches);
  const std::vector<PatchTile> tiles = MakePatchTiles(rows_of);
  batch.cells = static_cast<int>(cells.size());
  batch.num_tiles = static_cast<int>(tiles.size());
  batch.places = staged_.Add(std::span<const GridPlace>(places));
  batch.tiles = staged_.Add(std::span<const PatchTile>(tiles));
  batch.cell_places = staged_.Add(std::span<const PooledCell>(cells));
  batch.pixels = StagePixels(images, staged_);
  staged_.Send(device_.stream());
  return batch;
}

void CudaVisionTower::Embed(const Batch& batch) {
  RunCenterPixels(device_.context(), batch.pixels, int64_t{batch.patches} * input_proj_.cols,
                  x_.As<bf16>());
  device_.Multiply(input_proj_, x_.As<bf16>(), batch.patches, hidden_.As<float>());
  RunAddPositions(device_.context(), {.rows = batch.patches,
                                      .dim = tower_.hidden,
                                      .num_positions = tower_.num_positions,
                                      .table = positions_.data,
                                      .places = batch.places,
                                      .hidden = hidden_.As<float>()});
}

UpdateRowsCall CudaVisionTower::Update(int first_row, int rows) const {
  const int64_t at = int64_t{first_row} * tower_.hidden;
  UpdateRowsCall update;
  update.rows = rows;
  update.dim = tower_.hidden;
  update.eps = tower_.eps;
  update.x_eps = tower_.eps;
  update.hidden = hidden_.As<float>() + at;
  if (pending_norm_ != nullptr) {
    update.addend = added_.As<bf16>() + at;
    update.addend_norm = pending_norm_;
    update.addend_bounds = pending_bounds_;
  }
  return update;
}

void CudaVisionTower::RunAttention(const Layer& layer, const Batch& batch) {
  UpdateRowsCall update = Update(0, batch.patches);
  update.x_norm = layer.input_norm;
  update.x = x_.As<bf16>();
  device_.UpdateAndMultiply(update, layer.qkv, wide_.As<bf16>());

  PatchHeadsCall heads;
  heads.rows = batch.patches;
  heads.num_heads = tower_.num_heads;
  heads.head_dim = tower_.head_dim;
  heads.eps = tower_.eps;
  for (int part = 0; part < kVisionParts; ++part) {
    heads.projected[part] = layer.qkv.Part(wide_.As<bf16>(), part, batch.patches);
    heads.bounds[part] = layer.qkv.out[part];
  }
  heads.heads = heads_.As<bf16>();
  heads.stride = layer.qkv.stride();
  heads.q_norm = layer.q_norm;
  heads.k_norm = layer.k_norm;
  heads.rope = rope_;
  heads.places = batch.places;
  RunPatchHeads(device_.context(), heads);

  RunPatchAttention(device_.context(), {.rows = batch.patches,
                                        .num_heads = tower_.num_heads,
                                        .head_dim = tower_.head_dim,
                                        .heads = heads.heads,
                                        .tiles = batch.tiles,
                                        .num_tiles = batch.num_tiles,
                                        .out = x_.As<bf16>(),
                                        .out_bounds = layer.o_proj.in});
  device_.Multiply(layer.o_proj.weight, x_.As<bf16>(), batch.patches, added_.As<bf16>());
  pending_norm_ = layer.post_attention_norm;
  pending_bounds_ = layer.o_proj.out;
}

void CudaVisionTower::RunMlp(const Layer& layer, const Batch& batch) {
  const int parts = (batch.patches + kTowerMlpRows - 1) / kTowerMlpRows;
  const int part_rows = (batch.patches + parts - 1) / parts;
  for (int first = 0; first < batch.patches; first += part_rows) {
    const int rows = std::min(part_rows, batch.patches - first);
    UpdateRowsCall update = Update(first, rows);
    update.x_norm = layer.pre_mlp_norm;
    update.x = x_.As<bf16>();
    device_.UpdateAndMultiply(update, layer.gate_up, wide_.As<bf16>());
    RunGate(device_.context(), {.rows = rows,
                                .width = mlp_width_,
                                .gate = layer.gate_up.Part(wide_.As<bf16>(), 0, rows),
                                .up = layer.gate_up.Part(wide_.As<bf16>(), 1, rows),
                                .stride = layer.gate_up.stride(),
                                .gate_bounds = layer.gate_up.out[0],
                                .up_bounds = layer.gate_up.out[1],
                                .out = gated_.As<bf16>(),
                                .out_bounds = layer.down_proj.in});
    // What was pending of these rows has been added.
    device_.Multiply(layer.down_proj.weight, gated_.As<bf16>(), rows,
                     added_.As<bf16>() + int64_t{first} * tower_.hidden);
  }
  pending_norm_ = layer.post_mlp_norm;
  pending_bounds_ = layer.down_proj.out;
}

void CudaVisionTower::Run(const Batch& batch, float* out) {
  Embed(batch);
  pending_norm_ = nullptr;
  for (const Layer& layer : layers_) {
    RunAttention(layer, batch);
    RunMlp(layer, batch);
  }
  RunUpdateRows(device_.context(), Update(0, batch.patches));
  RunPoolCells(device_.context(), {.cells = batch.cells,
                                   .dim = tower_.hidden,
                                   .kernel = plan_.grid.kernel,
                                   .eps = tower_.eps,
                                   .hidden = hidden_.As<float>(),
                                   .places = batch.cell_places,
                                   .std_bias = std_bias_,
                                   .std_scale = std_scale_,
                                   .x = x_.As<bf16>()});
  device_.Multiply(projection_, x_.As<bf16>(), batch.cells, out_.As<float>());
  LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(out, out_.As<void>(),
                                      int64_t{batch.cells} * plan_.text_hidden * sizeof(float),
                                      cudaMemcpyDeviceToHost, device_.stream()));
}

Status CellEmbedderSupport(const TowersPlan& plan) {
  const int side = plan.grid.cell();
  for (const int dim : {3 * side * side, plan.cell_embedder->hidden}) {
    if (dim % 8 != 0 || dim > kMaxCellDim) {
      return MakeError("image cells of {} values, which is no multiple of 8 up to {}", dim,
                       kMaxCellDim);
    }
  }
  return {};
}

CudaCellEmbedder::CudaCellEmbedder(const TowersPlan& plan, const TowerTensors& tensors,
                                   TowerDevice& device)
    : plan_(plan), embedder_(*plan_.cell_embedder), device_(device) {
  const std::string prefix = "vision_embedder.";
  const auto load_norm = [&](const std::string& name, const float*(&norm)[2]) {
    norm[0] = device.UploadVector(tensors.Vector(prefix + name + ".weight"));
    norm[1] = device.UploadVector(tensors.Vector(prefix + name + ".bias"));
  };
  load_norm("patch_ln1", input_norm_);
  load_norm("patch_ln2", dense_norm_);
  load_norm("pos_norm", position_norm_);
  dense_ = device.UploadMatrix(tensors.Matrix(prefix + "patch_dense.weight"));
  dense_bias_ = device.UploadVector(tensors.Vector(prefix + "patch_dense.bias"));
  positions_ = device.UploadMatrix(tensors.Matrix(prefix + "pos_embedding"));
  projection_ = device.UploadMatrix(tensors.Matrix("embed_vision.embedding_projection.weight"));

  const TowerBuffers buffers = PlanCellEmbedder(plan_);
  staged_ = StagedArray(buffers.staged, kPurpose);
  x_ = DeviceBuffer(buffers.x, kPurpose);
  hidden_ = DeviceBuffer(buffers.hidden, kPurpose);
  out_ = DeviceBuffer(buffers.out, kPurpose);
}

void CudaCellEmbedder::Encode(std::span<const ImagePatches* const> images, float* out) {
  std::vector<GridPlace> places;
  for (const ImagePatches* image : images) {
    CHECK_EQ(image->patch_values(), dense_.cols);
    CHECK_LE(std::max(image->grid_width, image->grid_height), embedder_.num_positions);
    AddPlaces(*image, places);
  }
  const int cells = static_cast<int>(places.size());
  CHECK_LE(cells, kMaxTowerCells);
  const GridPlace* const device_places = staged_.Add(std::span<const GridPlace>(places));
  const float* const device_pixels = StagePixels(images, staged_);
  staged_.Send(device_.stream());

  LayerNormCall norm;
  norm.rows = cells;
  norm.dim = dense_.cols;
  norm.values = device_pixels;
  norm.weight = input_norm_[0];
  norm.bias = input_norm_[1];
  norm.x = x_.As<bf16>();
  RunLayerNorm(device_.context(), norm);
  device_.Multiply(dense_, x_.As<bf16>(), cells, hidden_.As<float>());

  EmbedCellsCall embed;
  embed.rows = cells;
  embed.dim = embedder_.hidden;
  embed.eps = embedder_.eps;
  embed.values = hidden_.As<float>();
  embed.bias = dense_bias_;
  std::copy_n(dense_norm_, 2, embed.first_norm);
  std::copy_n(position_norm_, 2, embed.position_norm);
  embed.table = positions_.data;
  embed.places = device_places;
  embed.x = x_.As<bf16>();
  RunEmbedCells(device_.context(), embed);
  device_.Multiply(projection_, x_.As<bf16>(), cells, out_.As<float>());
  LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(out, out_.As<void>(),
                                      int64_t{cells} * plan_.text_hidden * sizeof(float),
                                      cudaMemcpyDeviceToHost, device_.stream()));
}

}  // namespace lapidary::cuda
