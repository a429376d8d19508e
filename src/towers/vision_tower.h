// The vision encoder on the CPU, from images to soft tokens: the reference that other devices are
// compared with.
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "media/patches.h"
#include "towers/tower_plan.h"
#include "towers/tower_tensors.h"

namespace lapidary::cpu {

// All sizes but 12B: bidirectional attention over patches, then the mean of every cell.
//
//   e_i = W_in (2 p_i - 1) + T[0, x_i] + T[1, y_i]
//   layer: h += norm(Wo attend(q, k, v));  h += norm(W_down(gelu(W_gate m) * W_up m))
//   soft = W_proj rms(standardize(sqrt(D) * mean of the cell's h))
class VisionTower {
 public:
  VisionTower(const TowersPlan& plan, const TowerTensors& tensors);

  // `patches` of grid.patch pixels -> [cells, text hidden], row-major over cells.
  std::vector<float> Encode(const ImagePatches& patches, ThreadPool& threads) const;

 private:
  struct Layer {
    std::vector<float> input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm;
    std::vector<float> q_norm, k_norm;
    ClippedMatrix q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj;
  };
  // Rotary tables of the grid's columns and rows; the first half of a head turns by the column.
  struct Rotary;

  std::vector<float> Embed(const ImagePatches& patches, ThreadPool& threads) const;
  std::vector<float> Attend(const Layer& layer, const std::vector<float>& normed,
                            const ImagePatches& grid, const Rotary& rotary,
                            ThreadPool& threads) const;
  // [cells, hidden]
  std::vector<float> Pool(const std::vector<float>& hidden, const ImagePatches& grid) const;

  const VisionTowerPlan plan_;
  const PatchGrid grid_;
  MatrixRef input_proj_;
  MatrixRef positions_;  // [2 * num_positions, hidden]
  std::vector<Layer> layers_;
  std::vector<float> std_bias_, std_scale_;  // where standardized
  MatrixRef projection_;
};

// 12B: a cell's pixels become a soft token directly.
//
//   u = LN2(W_d LN1(p) + b_d) + P[x, 0] + P[y, 1];  soft = W_proj rms(LN3(u))
class CellEmbedder {
 public:
  CellEmbedder(const TowersPlan& plan, const TowerTensors& tensors);

  // `cells`: patches of grid.cell() pixels -> [cells, text hidden].
  std::vector<float> Encode(const ImagePatches& cells, ThreadPool& threads) const;

 private:
  struct Affine {
    std::vector<float> weight, bias;
  };

  const CellEmbedderPlan plan_;
  Affine input_norm_, dense_norm_, position_norm_;
  MatrixRef dense_;
  std::vector<float> dense_bias_;
  MatrixRef positions_;  // [num_positions * 2, hidden]
  MatrixRef projection_;
};

}  // namespace lapidary::cpu
