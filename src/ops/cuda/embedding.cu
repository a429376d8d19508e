#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/embedding.h"
#include "ops/cuda/rope_fill.cuh"
#include "ops/cuda/vec.cuh"
#include "ops/cuda/weight_row.cuh"
#include "tensor/block_values.h"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 256;

// Blocks [0, rows) gather a row each; blocks [rows, 2 rows) fill its rotary tables.
__global__ void __launch_bounds__(kThreads) EmbedKernel(EmbedCall call, TileType type) {
  AllowNextKernel();
  WaitForPreviousKernel();
  if (blockIdx.x >= call.rows) {
    const int row = blockIdx.x - call.rows;
    for (const RopeTableFill& fill : call.rope) FillRope(fill, row, call.positions[row]);
    return;
  }
  const int row = blockIdx.x;
  const int64_t token = call.token_ids[row];
  for (int at = threadIdx.x * 8; at < call.hidden; at += kThreads * 8) {
    float values[8];
    LoadRow8(call.embedding, type, token, at, values);
#pragma unroll
    for (float& value : values) value *= call.scale;
    float4* hidden = reinterpret_cast<float4*>(call.hidden_out + int64_t{row} * call.hidden + at);
    hidden[0] = make_float4(values[0], values[1], values[2], values[3]);
    hidden[1] = make_float4(values[4], values[5], values[6], values[7]);
    if (call.x != nullptr) Store8(call.x + int64_t{row} * call.hidden + at, values);
  }
}

__global__ void __launch_bounds__(kThreads) PlaceRowsKernel(PlaceRowsCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t row_at = int64_t{blockIdx.x} * call.hidden;
  for (int at = threadIdx.x * 8; at < call.hidden; at += kThreads * 8) {
    const float4* from = reinterpret_cast<const float4*>(call.values + row_at + at);
    float4* to = reinterpret_cast<float4*>(call.hidden_out + row_at + at);
    const float4 low = from[0];
    const float4 high = from[1];
    to[0] = low;
    to[1] = high;
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (call.x != nullptr) Store8(call.x + row_at + at, values);
  }
}

// Eight values of a row of the table of per-layer embeddings, in bf16 or GGUF blocks of `type`.
__device__ __forceinline__ void LoadTable8(DType type, const uint8_t* row, int at,
                                           float (&values)[8]) {
  if (type == DType::kBF16) return Load8(reinterpret_cast<const bf16*>(row) + at, values);
  LoadBlockValues8(type, row, at, values);
}

// A warp per (row, layer). `row_bytes`: of the table.
__global__ void __launch_bounds__(kThreads)
    PerLayerInputsKernel(PerLayerInputsCall call, int64_t row_bytes) {
  AllowNextKernel();
  WaitForPreviousKernel();
  constexpr int kWarps = kThreads / kWarpSize;
  const int64_t task = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (task >= int64_t{call.rows} * call.num_layers) return;
  const int64_t row = task / call.num_layers;
  const int64_t layer = task % call.num_layers;
  const int64_t columns = int64_t{call.num_layers} * call.width;
  const int at = threadIdx.x % kWarpSize * 8;
  const bool active = at < call.width;
  float table[8] = {};
  float values[8] = {};
  if (active) {
    LoadTable8(call.table.format.unit,
               static_cast<const uint8_t*>(call.table.data) + call.token_ids[row] * row_bytes,
               static_cast<int>(layer) * call.width + at, table);
    Load8(call.projected + row * columns + layer * call.width + at, values);
  }
  const float input_scale = rsqrtf(static_cast<float>(call.hidden));
  float squares = 0.0f;
#pragma unroll
  for (float& value : values) {
    value *= input_scale;
    squares += value * value;
  }
  const float inverse = rsqrtf(WarpSum(squares) / static_cast<float>(call.width) + call.eps);
  if (!active) return;
  const float table_scale = sqrtf(static_cast<float>(call.width));
#pragma unroll
  for (int idx = 0; idx < 8; ++idx) {
    values[idx] = (values[idx] * inverse * call.norm[at + idx] + table[idx] * table_scale) *
                  0.70710678118654752f;
  }
  Store8(call.out + row * columns + layer * call.width + at, values);
}

__global__ void __launch_bounds__(kThreads)
    GatherRowsKernel(const uint4* from, const int32_t* row_ids, int64_t vectors, uint4* to) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t source = row_ids[blockIdx.x];
  for (int64_t at = threadIdx.x; at < vectors; at += kThreads) {
    to[blockIdx.x * vectors + at] = from[source * vectors + at];
  }
}

}  // namespace

void RunEmbed(const LaunchContext& context, const EmbedCall& call) {
  CHECK_OK(EmbedSupports(call.hidden, kMaxRopeTables));
  CHECK_EQ(call.embedding.cols, call.hidden);
  Launch(context, EmbedKernel, dim3(2 * call.rows), dim3(kThreads), 0, call,
         TileTypeOf(call.embedding));
}

void RunPlaceRows(const LaunchContext& context, const PlaceRowsCall& call) {
  CHECK_OK(EmbedSupports(call.hidden, kMaxRopeTables));
  Launch(context, PlaceRowsKernel, dim3(call.rows), dim3(kThreads), 0, call);
}

void RunPerLayerInputs(const LaunchContext& context, const PerLayerInputsCall& call) {
  static_assert(kMaxPerLayerWidth == 8 * kWarpSize);
  CHECK_OK(PerLayerInputsSupports(call.width));
  const WeightFormat& format = call.table.format;
  CHECK(format == FormatOf(DType::kBF16) || format.layout == WeightLayout::kBlocks)
      << FormatName(format);
  CHECK_EQ(call.table.cols, call.num_layers * call.width);
  constexpr int kWarps = kThreads / kWarpSize;
  const int64_t tasks = int64_t{call.rows} * call.num_layers;
  Launch(context, PerLayerInputsKernel, dim3(static_cast<unsigned>((tasks + kWarps - 1) / kWarps)),
         dim3(kThreads), 0, call, call.table.row_bytes());
}

void RunGatherRows(const LaunchContext& context, const void* from, const int32_t* row_ids, int rows,
                   int64_t row_bytes, void* to) {
  CHECK_EQ(row_bytes % 16, 0);
  Launch(context, GatherRowsKernel, dim3(rows), dim3(kThreads), 0, static_cast<const uint4*>(from),
         row_ids, row_bytes / 16, static_cast<uint4*>(to));
}

}  // namespace lapidary::cuda
