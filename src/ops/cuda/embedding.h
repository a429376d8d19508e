// The start of a step: token ids to hidden rows, rotary tables and per-layer inputs.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/rope_table.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cuda {

inline constexpr int kMaxRopeTables = 2;
inline constexpr int kMaxPerLayerWidth = 256;

// One rotary plan's table for the rows of a step.
struct RopeTableFill {
  const float* frequencies = nullptr;  // [pairs]
  int pairs = 0;
  float2* table = nullptr;  // [rows, RopeRowPairs]: cosine and sine of position * frequency
};

struct EmbedCall {
  int rows = 0;
  int hidden = 0;
  const int32_t* token_ids = nullptr;  // [rows]
  const int32_t* positions = nullptr;  // [rows]
  MatrixRef embedding;                 // [vocab, hidden]
  float scale = 1.0f;
  float* hidden_out = nullptr;  // [rows, hidden] = E[token] * scale
  bf16* x = nullptr;            // the same in bf16; null: not wanted
  RopeTableFill rope[kMaxRopeTables];
};
Status EmbedSupports(int hidden, int num_rope_tables);
void RunEmbed(const LaunchContext& context, const EmbedCall& call);

// Rows that are no token's embedding: hidden_out and x of EmbedCall, from its first such row on.
struct PlaceRowsCall {
  int rows = 0;
  int hidden = 0;
  const float* values = nullptr;  // [rows, hidden], on the device or page-locked on the host
  float* hidden_out = nullptr;
  bf16* x = nullptr;  // null: not wanted
};
void RunPlaceRows(const LaunchContext& context, const PlaceRowsCall& call);

// ple[row, l] = (rmsnorm(projected[row, l] / sqrt(hidden)) * norm + sqrt(width) * table[id, l])
//               / sqrt(2), for every layer l
struct PerLayerInputsCall {
  int rows = 0;
  int num_layers = 0;
  int width = 0;
  int hidden = 0;
  float eps = 1e-6f;
  const int32_t* token_ids = nullptr;  // [rows]
  MatrixRef table;  // [ids, layers * width], on the device or page-locked on the host
  const bf16* projected = nullptr;  // [rows, layers * width]
  const float* norm = nullptr;      // [width]
  bf16* out = nullptr;              // [rows, layers * width]
};
Status PerLayerInputsSupports(int width);
void RunPerLayerInputs(const LaunchContext& context, const PerLayerInputsCall& call);

// to[i] = from[row_ids[i]], rows of `row_bytes` (a multiple of 16).
void RunGatherRows(const LaunchContext& context, const void* from, const int32_t* row_ids, int rows,
                   int64_t row_bytes, void* to);

}  // namespace lapidary::cuda
