#include "base/check.h"
#include "ops/cuda/drafting/drafting.h"
#include "ops/cuda/rope_fill.cuh"
#include "ops/cuda/row_norm.cuh"
#include "ops/cuda/vec.cuh"
#include "ops/cuda/weight_row.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads == kNormThreads);

// Blocks [0, rows) make a row each; with rounds, blocks [rows, 2 rows) fill its rotary tables.
__global__ void __launch_bounds__(kThreads)
    DraftInputsKernel(const __grid_constant__ DraftInputsCall call, TileType type) {
  AllowNextKernel();
  WaitForPreviousKernel();
  if (blockIdx.x >= call.rows) {
    const int row = blockIdx.x - call.rows;
    for (const RopeTableFill& fill : call.rope) FillRope(fill, row, call.positions[row]);
    return;
  }
  const int row = blockIdx.x;
  const int64_t from = call.rounds == nullptr ? row : call.planned[call.rounds[row].sequence].slot;
  const int64_t token = call.tokens[row];
  const bf16* hidden = call.hidden + from * call.backbone;
  bf16* to = call.inputs + int64_t{row} * 2 * call.backbone;
  for (int at = threadIdx.x * 8; at < call.backbone; at += kThreads * 8) {
    float values[8];
    LoadRow8(call.embedding, type, token, at, values);
#pragma unroll
    for (float& value : values) value *= call.scale;
    Store8(to + at, values);
    *reinterpret_cast<Bf16x8*>(to + call.backbone + at) =
        *reinterpret_cast<const Bf16x8*>(hidden + at);
  }
}

// A block for each sampled row; those of a round's first keep the row that gave its last token.
__global__ void __launch_bounds__(kThreads)
    KeepHiddenKernel(const __grid_constant__ KeepHiddenCall call) {
  __shared__ float scratch[kNormWarps];
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow& spec = call.spec[blockIdx.x];
  if (spec.scored_id >= 0 || spec.rows_before != 0) return;
  const int num_accepted = call.sampled_rows[blockIdx.x].num_accepted;
  if (num_accepted == 0) return;
  const int64_t row = spec.logits_row + num_accepted - 1;
  const auto* stream = reinterpret_cast<const float4*>(call.stream + row * call.hidden_size);
  const auto* norm = reinterpret_cast<const float4*>(call.norm);
  const int num_quads = call.hidden_size / 4;
  float sum = 0.0f;
  for (int quad = threadIdx.x; quad < num_quads; quad += kThreads) {
    sum = AddSquares(sum, stream[quad]);
  }
  const float inverse_rms = InverseRms(BlockSum(sum, scratch), call.hidden_size, call.eps);
  auto* to = reinterpret_cast<uint2*>(call.hidden + int64_t{spec.slot} * call.hidden_size);
  for (int quad = threadIdx.x; quad < num_quads; quad += kThreads) {
    to[quad] = PackBf16x4(Normed(stream[quad], inverse_rms, norm[quad]));
  }
}

}  // namespace

void RunDraftInputs(const LaunchContext& context, const DraftInputsCall& call) {
  CHECK_EQ(call.embedding.cols, call.backbone);
  const int blocks = call.rounds == nullptr ? call.rows : 2 * call.rows;
  Launch(context, DraftInputsKernel, dim3(blocks), dim3(kThreads), 0, call,
         TileTypeOf(call.embedding));
}

void RunKeepHidden(const LaunchContext& context, const KeepHiddenCall& call) {
  if (call.sampled == 0) return;
  Launch(context, KeepHiddenKernel, dim3(call.sampled), dim3(kThreads), 0, call);
}

}  // namespace lapidary::cuda
