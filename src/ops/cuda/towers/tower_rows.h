// What towers do to rows between their matrix products: norms, residual sums, gates, rotary heads,
// pooling. Rows in flight are f32 (the residual stream) or bf16 (inputs and results of products).
#pragma once

#include <cstdint>
#include <limits>

#include "base/status.h"
#include "ops/cuda/launch.h"

namespace lapidary::cuda {

// Of a clipped linear's inputs or outputs; infinite ones clamp nothing.
struct Bounds {
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();

  bool operator==(const Bounds&) const = default;
};

inline constexpr int kMaxTowerDim = 2048;
inline constexpr int kMaxRowInputs = 3;  // q, k and v of a row
Status TowerRowsSupports(int dim);

// h = h + bias + scale * (rmsnorm(clamp(addend)) * addend_norm, or clamp(addend) itself)
// h = rmsnorm(h) * hidden_norm, where there is one
// x = clamp(rmsnorm(h) * x_norm), or clamp(h)
struct UpdateRowsCall {
  int rows = 0;
  int dim = 0;              // a multiple of 4 up to kMaxTowerDim
  float* hidden = nullptr;  // [rows, dim]; kept unless `keeps_hidden` is false
  bool keeps_hidden = true;
  const bf16* addend = nullptr;  // [rows, dim]; null: nothing is added
  Bounds addend_bounds;
  const float* addend_norm = nullptr;  // [dim]; null: it is not normed
  float addend_scale = 1.0f;
  const float* bias = nullptr;         // [dim]; null: none
  const float* hidden_norm = nullptr;  // [dim]; null: none
  float eps = 1e-6f;                   // of the norms above
  bool norms_x = true;
  const float* x_norm = nullptr;  // [dim]; null: ones
  float x_eps = 1e-6f;
  bf16* x = nullptr;  // [num_x, rows, dim]; null: not wanted
  int num_x = 1;      // products of other bounds each have their own
  Bounds x_bounds[kMaxRowInputs];
};
void RunUpdateRows(const LaunchContext& context, const UpdateRowsCall& call);

// x = 2 v - 1
void RunCenterPixels(const LaunchContext& context, const float* values, int64_t count, bf16* x);

// Where a patch or a cell lies in its picture.
struct GridPlace {
  int32_t column = 0;
  int32_t row = 0;
};

// h += table[0, column] + table[1, row]
struct AddPositionsCall {
  int rows = 0;
  int dim = 0;  // a multiple of 4
  int num_positions = 0;
  const bf16* table = nullptr;        // [2, num_positions, dim]
  const GridPlace* places = nullptr;  // [rows]
  float* hidden = nullptr;            // [rows, dim]
};
void RunAddPositions(const LaunchContext& context, const AddPositionsCall& call);

// Projections of patches to what attention reads: q and k normed and turned, v normed. The first
// half of a head turns by its patch's column, the second by its row.
struct PatchHeadsCall {
  int rows = 0;
  int num_heads = 0;
  int head_dim = 0;  // a multiple of 8
  float eps = 1e-6f;
  // q, k, v: [rows, num_heads * head_dim] with a row stride.
  const bf16* projected[3] = {};
  int64_t stride = 0;
  Bounds bounds[3];
  const float* q_norm = nullptr;      // [head_dim]
  const float* k_norm = nullptr;      // [head_dim]
  const float2* rope = nullptr;       // [positions, head_dim / 4]: cosine and sine
  const GridPlace* places = nullptr;  // [rows]
  bf16* heads = nullptr;              // q, k, v: as PatchAttentionCall has them
};
Status PatchHeadsSupports(int num_heads, int head_dim);
void RunPatchHeads(const LaunchContext& context, const PatchHeadsCall& call);

// out = clamp(gelu(clamp(gate)) * clamp(up)); without `up`, out = clamp(silu(clamp(gate))).
struct GateCall {
  int rows = 0;
  int width = 0;  // a multiple of 8
  const bf16* gate = nullptr;
  const bf16* up = nullptr;
  int64_t stride = 0;  // of both
  Bounds gate_bounds;
  Bounds up_bounds;
  bf16* out = nullptr;  // [rows, width]
  Bounds out_bounds;
};
void RunGate(const LaunchContext& context, const GateCall& call);

// A cell of kernel x kernel patches of the same picture.
struct PooledCell {
  int32_t first_row = 0;   // of its upper left patch
  int32_t grid_width = 0;  // patches from one row of patches to the next
};

// g = sqrt(dim) * mean of the cell's h;  g = (g - bias) * scale where standardized;
// x = rmsnorm(g)
struct PoolCellsCall {
  int cells = 0;
  int dim = 0;  // up to kMaxTowerDim
  int kernel = 0;
  float eps = 1e-6f;
  const float* hidden = nullptr;  // [patches, dim]
  const PooledCell* places = nullptr;
  const float* std_bias = nullptr;  // [dim]; null: not standardized
  const float* std_scale = nullptr;
  bf16* x = nullptr;  // [cells, dim]
};
void RunPoolCells(const LaunchContext& context, const PoolCellsCall& call);

// x = layernorm(values) * weight + bias
struct LayerNormCall {
  int rows = 0;
  int dim = 0;  // up to kMaxCellDim
  float eps = 1e-5f;
  const float* values = nullptr;  // [rows, dim]
  const float* weight = nullptr;
  const float* bias = nullptr;
  bf16* x = nullptr;
};
inline constexpr int kMaxCellDim = 8192;
void RunLayerNorm(const LaunchContext& context, const LayerNormCall& call);

// u = layernorm(values + bias) + table[column, 0] + table[row, 1];  x = rmsnorm(layernorm(u))
struct EmbedCellsCall {
  int rows = 0;
  int dim = 0;  // up to kMaxCellDim
  float layer_eps = 1e-5f;
  float eps = 1e-6f;
  const float* values = nullptr;       // [rows, dim]
  const float* bias = nullptr;         // [dim]
  const float* first_norm[2] = {};     // weight, bias
  const float* position_norm[2] = {};  // weight, bias
  const bf16* table = nullptr;         // [positions, 2, dim]
  const GridPlace* places = nullptr;   // [rows]
  bf16* x = nullptr;                   // [rows, dim]
};
void RunEmbedCells(const LaunchContext& context, const EmbedCellsCall& call);

}  // namespace lapidary::cuda
