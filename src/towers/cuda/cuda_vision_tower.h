// The vision encoder on a GPU: what cpu::VisionTower and cpu::CellEmbedder compute
// (towers/vision_tower.h), in bf16 with sums and the residual stream in f32.
#pragma once

#include <span>
#include <vector>

#include "media/patches.h"
#include "ops/cuda/towers/patch_attention.h"
#include "towers/cuda/tower_device.h"
#include "towers/tower_plan.h"

namespace lapidary::cuda {

Status VisionTowerSupport(const TowersPlan& plan);

class CudaVisionTower {
 public:
  // `device` must outlive this.
  CudaVisionTower(const TowersPlan& plan, const TowerTensors& tensors, TowerDevice& device);

  // Images on the device.
  struct Batch {
    int patches = 0;
    int cells = 0;
    int num_tiles = 0;
    const float* pixels = nullptr;  // [patches, patch values]
    const GridPlace* places = nullptr;
    const PatchTile* tiles = nullptr;
    const PooledCell* cell_places = nullptr;
  };
  // Images of any sizes, at most kMaxTowerPatches patches in all, on their way.
  Batch Stage(std::span<const ImagePatches* const> images);
  // Queues the work: rows of all of them go to `out` [cells, text hidden], page-locked.
  void Run(const Batch& batch, float* out);

 private:
  struct Layer {
    const float* input_norm;
    const float* post_attention_norm;
    const float* pre_mlp_norm;
    const float* post_mlp_norm;
    const float* q_norm;
    const float* k_norm;
    DeviceLinearGroup qkv;
    DeviceLinear o_proj;
    DeviceLinearGroup gate_up;
    DeviceLinear down_proj;
  };
  void Embed(const Batch& batch);
  // What a block adds is pending in added_, with its norm and bounds, until the next update.
  void RunAttention(const Layer& layer, const Batch& batch);
  void RunMlp(const Layer& layer, const Batch& batch);
  UpdateRowsCall Update(int first_row, int rows) const;

  const TowersPlan plan_;
  const VisionTowerPlan& tower_;
  const int mlp_width_;  // a multiple of 8, the rest are zeros
  TowerDevice& device_;

  DeviceMatrix input_proj_;
  DeviceMatrix positions_;  // [2 * num_positions, hidden]
  const float2* rope_;      // [num_positions, head_dim / 4]
  std::vector<Layer> layers_;
  const float* std_bias_ = nullptr;
  const float* std_scale_ = nullptr;
  DeviceMatrix projection_;

  StagedArray staged_;
  DeviceBuffer hidden_;  // f32 [patches, hidden]
  DeviceBuffer x_;       // bf16: a product's input
  DeviceBuffer wide_;    // bf16: results of qkv, or of a part of the rows' gate and up
  DeviceBuffer gated_;   // bf16 [rows of a part, mlp width]
  DeviceBuffer heads_;   // bf16: q, k, v as PatchAttentionCall has them
  DeviceBuffer added_;   // bf16 [patches, hidden]
  DeviceBuffer out_;     // f32 [cells, text hidden]

  // Of what is in added_; null: nothing is pending.
  const float* pending_norm_ = nullptr;
  Bounds pending_bounds_;
};

Status CellEmbedderSupport(const TowersPlan& plan);

class CudaCellEmbedder {
 public:
  CudaCellEmbedder(const TowersPlan& plan, const TowerTensors& tensors, TowerDevice& device);

  // At most kMaxTowerCells cells in all. Queues the work: rows go to `out` [cells, text hidden],
  // page-locked.
  void Encode(std::span<const ImagePatches* const> images, float* out);

 private:
  const TowersPlan plan_;
  const CellEmbedderPlan& embedder_;
  TowerDevice& device_;
  const float* input_norm_[2];  // weight, bias
  const float* dense_norm_[2];
  const float* position_norm_[2];
  DeviceMatrix dense_;
  const float* dense_bias_;
  DeviceMatrix positions_;
  DeviceMatrix projection_;

  StagedArray staged_;
  DeviceBuffer x_;
  DeviceBuffer hidden_;  // f32 [cells, hidden]
  DeviceBuffer out_;
};

}  // namespace lapidary::cuda
