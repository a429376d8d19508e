#include "base/check.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/towers/padded_head.h"
#include "ops/cuda/towers/tower_row.cuh"
#include "ops/cuda/towers/tower_rows.h"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;

dim3 BlocksFor(int64_t count, int per_block) {
  return dim3(static_cast<unsigned>((count + per_block - 1) / per_block));
}

// A warp starts to bring a weight into L2; null: there is none.
__device__ __forceinline__ void PrefetchWeight(const float* weight, int dim) {
  constexpr int kLine = 128 / sizeof(float);
  if (weight == nullptr) return;
  for (int at = static_cast<int>(threadIdx.x % kWarpSize) * kLine; at < dim;
       at += kWarpSize * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(weight + at));
  }
}

// A warp per row.
template <int kQuads>
__global__ void __launch_bounds__(kThreads)
    UpdateRowsKernel(const __grid_constant__ UpdateRowsCall call) {
  AllowNextKernel();
  if (threadIdx.x < kWarpSize) {
    PrefetchWeight(call.addend_norm, call.dim);
    PrefetchWeight(call.hidden_norm, call.dim);
    PrefetchWeight(call.x_norm, call.dim);
  }
  WaitForPreviousKernel();
  const int row_idx = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarpSize);
  if (row_idx >= call.rows) return;
  const int64_t at = int64_t{row_idx} * call.dim;
  const int num_quads = call.dim / 4;
  WarpRow<kQuads> row;
  row.Load(call.hidden + at, num_quads);
  if (call.bias != nullptr) {
    row.ForEach(num_quads, [&](int quad, float4& v) {
      v = MulAdd(v, 1.0f, reinterpret_cast<const float4*>(call.bias)[quad]);
    });
  }
  if (call.addend != nullptr) {
    WarpRow<kQuads> addend;
    addend.Load(call.addend + at, num_quads);
    addend.ForEach(num_quads, [&](int, float4& v) { v = Clamp(v, call.addend_bounds); });
    if (call.addend_norm != nullptr) addend.Norm(call.addend_norm, call.dim, call.eps);
#pragma unroll
    for (int idx = 0; idx < kQuads; ++idx) {
      row.quads[idx] = MulAdd(addend.quads[idx], call.addend_scale, row.quads[idx]);
    }
  }
  if (call.hidden_norm != nullptr) row.Norm(call.hidden_norm, call.dim, call.eps);
  if (call.keeps_hidden) {
    row.ForEach(num_quads, [&](int quad, const float4& v) {
      reinterpret_cast<float4*>(call.hidden + at)[quad] = v;
    });
  }
  if (call.x == nullptr) return;
  if (call.norms_x) row.Norm(call.x_norm, call.dim, call.x_eps);
  for (int idx = 0; idx < call.num_x; ++idx) {
    row.Store(call.x + int64_t{idx} * call.rows * call.dim + at, num_quads, call.x_bounds[idx]);
  }
}

__global__ void __launch_bounds__(kThreads)
    CenterPixelsKernel(const float* values, int64_t count, bf16* x) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  if (at >= count) return;
  float4 v = *reinterpret_cast<const float4*>(values + at);
  v = {2.0f * v.x - 1.0f, 2.0f * v.y - 1.0f, 2.0f * v.z - 1.0f, 2.0f * v.w - 1.0f};
  *reinterpret_cast<uint2*>(x + at) = PackBf16x4(v);
}

__global__ void __launch_bounds__(kThreads)
    AddPositionsKernel(const __grid_constant__ AddPositionsCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const GridPlace place = call.places[blockIdx.x];
  const bf16* const by_column = call.table + int64_t{place.column} * call.dim;
  const bf16* const by_row = call.table + (int64_t{call.num_positions} + place.row) * call.dim;
  float4* const hidden = reinterpret_cast<float4*>(call.hidden + int64_t{blockIdx.x} * call.dim);
  for (int quad = threadIdx.x; quad < call.dim / 4; quad += kThreads) {
    const float4 column = UnpackBf16x4(reinterpret_cast<const uint2*>(by_column)[quad]);
    const float4 row = UnpackBf16x4(reinterpret_cast<const uint2*>(by_row)[quad]);
    hidden[quad] = MulAdd(hidden[quad], 1.0f, MulAdd(column, 1.0f, row));
  }
}

constexpr int kMaxHeadThreads = 512;

__device__ __forceinline__ float2 LoadPair(const bf16* from, const Bounds& bounds) {
  const float2 pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
  return {Clamp(pair.x, bounds), Clamp(pair.y, bounds)};
}

// What turns together: dims j and j + quarter of either half of a head.
__device__ __forceinline__ void Turn(float& low, float& high, float2 by) {
  const float turned = low * by.x - high * by.y;
  high = high * by.x + low * by.y;
  low = turned;
}

// A block per row. A thread has two dims of a head and the two that they turn with, of q, k and v.
__global__ void __launch_bounds__(kMaxHeadThreads)
    PatchHeadsKernel(const __grid_constant__ PatchHeadsCall call) {
  // Of a head's threads in turn, filled up to a multiple of four with zeros.
  __shared__ __align__(16) float squares[3][kMaxHeadThreads * 2];
  AllowNextKernel();
  const int64_t row = blockIdx.x;
  const int quarter = call.head_dim / 4;
  const int head = static_cast<int>(threadIdx.x) / quarter;
  const int place = static_cast<int>(threadIdx.x) - head * quarter;  // in the head
  const bool by_column = 2 * place < quarter;
  const int dim = by_column ? 2 * place : 2 * place + quarter;
  // What was there before the step is read first: one of these loads waits for another.
  const GridPlace grid = call.places[row];
  float2 low_weight[2];
  float2 high_weight[2];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const float* const weight = (part == 0 ? call.q_norm : call.k_norm) + dim;
    low_weight[part] = *reinterpret_cast<const float2*>(weight);
    high_weight[part] = *reinterpret_cast<const float2*>(weight + quarter);
  }
  const float4 turns =
      *reinterpret_cast<const float4*>(call.rope + (by_column ? grid.column : grid.row) * quarter +
                                       (by_column ? 2 * place : 2 * place - quarter));
  WaitForPreviousKernel();

  const int64_t from = row * call.stride + int64_t{head} * call.head_dim + dim;
  const int padded = (quarter + 3) / 4 * 4;
  float2 low[3];
  float2 high[3];
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    low[part] = LoadPair(call.projected[part] + from, call.bounds[part]);
    high[part] = LoadPair(call.projected[part] + from + quarter, call.bounds[part]);
  }
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    squares[part][head * padded + place] = low[part].x * low[part].x + low[part].y * low[part].y +
                                           high[part].x * high[part].x +
                                           high[part].y * high[part].y;
    if (place < padded - quarter) squares[part][head * padded + quarter + place] = 0.0f;
  }
  __syncthreads();
  const int padded_dim = call.head_dim > kHeadRun ? kHeadRun + kHeadTail : kHeadRun;
  bf16* const tails = call.heads + int64_t{3} * call.num_heads * call.rows * kHeadRun;
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    float sum = 0.0f;
    for (int idx = 0; idx < padded; idx += 4) {
      const float4 of = *reinterpret_cast<const float4*>(&squares[part][head * padded + idx]);
      sum += (of.x + of.y) + (of.z + of.w);
    }
    const float inverse = InverseRms(sum, call.head_dim, call.eps);
    low[part] = {low[part].x * inverse, low[part].y * inverse};
    high[part] = {high[part].x * inverse, high[part].y * inverse};
    if (part < 2) {
      low[part] = {low[part].x * low_weight[part].x, low[part].y * low_weight[part].y};
      high[part] = {high[part].x * high_weight[part].x, high[part].y * high_weight[part].y};
      Turn(low[part].x, high[part].x, {turns.x, turns.y});
      Turn(low[part].y, high[part].y, {turns.z, turns.w});
    }
    const int64_t to_row = (int64_t{part} * call.num_heads + head) * call.rows + row;
    const auto store = [&](int at, uint32_t pair) {
      bf16* const to = at < kHeadRun ? call.heads + to_row * kHeadRun + at
                                     : tails + to_row * kHeadTail + at - kHeadRun;
      *reinterpret_cast<uint32_t*>(to) = pair;
    };
    store(dim, PackBf16x2(low[part].x, low[part].y));
    store(dim + quarter, PackBf16x2(high[part].x, high[part].y));
    for (int rest = call.head_dim + 2 * place; rest < padded_dim; rest += 2 * quarter) {
      store(rest, 0);
    }
  }
}

__global__ void __launch_bounds__(kThreads) GateKernel(const __grid_constant__ GateCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (at >= int64_t{call.rows} * call.width) return;
  const int64_t source = at / call.width * call.stride + at % call.width;
  float values[8];
  Load8(call.gate + source, values);
  if (call.up != nullptr) {
    float up[8];
    Load8(call.up + source, up);
#pragma unroll
    for (int idx = 0; idx < 8; ++idx) {
      values[idx] =
          Clamp(GeluTanh(Clamp(values[idx], call.gate_bounds)) * Clamp(up[idx], call.up_bounds),
                call.out_bounds);
    }
  } else {
#pragma unroll
    for (float& value : values) {
      const float gate = Clamp(value, call.gate_bounds);
      value = Clamp(__fdividef(gate, 1.0f + __expf(-gate)), call.out_bounds);
    }
  }
  Store8(call.out + at, values);
}

// A warp per cell.
template <int kQuads>
__global__ void __launch_bounds__(kThreads)
    PoolCellsKernel(const __grid_constant__ PoolCellsCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int cell = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarpSize);
  if (cell >= call.cells) return;
  const PooledCell place = call.places[cell];
  const int num_quads = call.dim / 4;
  WarpRow<kQuads> sum;
  sum.Clear();
  for (int patch = 0; patch < call.kernel * call.kernel; ++patch) {
    const int64_t row =
        place.first_row + int64_t{patch / call.kernel} * place.grid_width + patch % call.kernel;
    const float4* const from = reinterpret_cast<const float4*>(call.hidden + row * call.dim);
    sum.ForEach(num_quads, [&](int quad, float4& v) { v = MulAdd(from[quad], 1.0f, v); });
  }
  const float scale =
      sqrtf(static_cast<float>(call.dim)) / static_cast<float>(call.kernel * call.kernel);
  sum.ForEach(num_quads, [&](int quad, float4& v) {
    v = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
    if (call.std_bias == nullptr) return;
    const float4 bias = reinterpret_cast<const float4*>(call.std_bias)[quad];
    const float4 factor = reinterpret_cast<const float4*>(call.std_scale)[quad];
    v = {(v.x - bias.x) * factor.x, (v.y - bias.y) * factor.y, (v.z - bias.z) * factor.z,
         (v.w - bias.w) * factor.w};
  });
  sum.Norm(nullptr, call.dim, call.eps);
  sum.Store(call.x + int64_t{cell} * call.dim, num_quads, {});
}

// A row in the shared memory of a block.
struct SharedRow {
  float* values;   // [dim]
  float* scratch;  // [2, kNormWarps]
  int dim;

  // Subtracts the mean, divides by the deviation, then times weight plus bias.
  __device__ void LayerNorm(const float* weight, const float* bias, float eps) const {
    float sum = 0.0f;
    for (int idx = threadIdx.x; idx < dim; idx += kNormThreads) sum += values[idx];
    const float mean = BlockSum(sum, scratch) / static_cast<float>(dim);
    float squares = 0.0f;
    for (int idx = threadIdx.x; idx < dim; idx += kNormThreads) {
      squares += (values[idx] - mean) * (values[idx] - mean);
    }
    const float inverse = InverseRms(BlockSum(squares, scratch + kNormWarps), dim, eps);
    for (int idx = threadIdx.x; idx < dim; idx += kNormThreads) {
      values[idx] = (values[idx] - mean) * inverse * weight[idx] + bias[idx];
    }
  }
};

__global__ void __launch_bounds__(kNormThreads)
    LayerNormKernel(const __grid_constant__ LayerNormCall call) {
  extern __shared__ float shared[];
  __shared__ float scratch[2 * kNormWarps];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t at = int64_t{blockIdx.x} * call.dim;
  const SharedRow row{shared, scratch, call.dim};
  for (int idx = threadIdx.x; idx < call.dim; idx += kNormThreads) {
    row.values[idx] = call.values[at + idx];
  }
  row.LayerNorm(call.weight, call.bias, call.eps);
  for (int idx = threadIdx.x; idx < call.dim; idx += kNormThreads) {
    call.x[at + idx] = __float2bfloat16_rn(row.values[idx]);
  }
}

__global__ void __launch_bounds__(kNormThreads)
    EmbedCellsKernel(const __grid_constant__ EmbedCellsCall call) {
  extern __shared__ float shared[];
  __shared__ float scratch[5 * kNormWarps];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t at = int64_t{blockIdx.x} * call.dim;
  const GridPlace place = call.places[blockIdx.x];
  SharedRow row{shared, scratch, call.dim};
  for (int idx = threadIdx.x; idx < call.dim; idx += kNormThreads) {
    row.values[idx] = call.values[at + idx] + call.bias[idx];
  }
  row.LayerNorm(call.first_norm[0], call.first_norm[1], call.layer_eps);
  const bf16* const by_column = call.table + int64_t{place.column} * 2 * call.dim;
  const bf16* const by_row = call.table + (int64_t{place.row} * 2 + 1) * call.dim;
  for (int idx = threadIdx.x; idx < call.dim; idx += kNormThreads) {
    row.values[idx] += __bfloat162float(by_column[idx]) + __bfloat162float(by_row[idx]);
  }
  row.scratch = scratch + 2 * kNormWarps;
  row.LayerNorm(call.position_norm[0], call.position_norm[1], call.layer_eps);
  float squares = 0.0f;
  for (int idx = threadIdx.x; idx < call.dim; idx += kNormThreads) {
    squares += row.values[idx] * row.values[idx];
  }
  const float inverse = InverseRms(BlockSum(squares, scratch + 4 * kNormWarps), call.dim, call.eps);
  for (int idx = threadIdx.x; idx < call.dim; idx += kNormThreads) {
    call.x[at + idx] = __float2bfloat16_rn(row.values[idx] * inverse);
  }
}

}  // namespace

void RunUpdateRows(const LaunchContext& context, const UpdateRowsCall& call) {
  CHECK_OK(TowerRowsSupports(call.dim));
  WithQuads(call.dim, [&](auto quads) {
    Launch(context, UpdateRowsKernel<decltype(quads)::value>, BlocksFor(call.rows, kWarps),
           dim3(kThreads), 0, call);
  });
}

void RunCenterPixels(const LaunchContext& context, const float* values, int64_t count, bf16* x) {
  CHECK_EQ(count % 4, 0);
  Launch(context, CenterPixelsKernel, BlocksFor(count / 4, kThreads), dim3(kThreads), 0, values,
         count, x);
}

void RunAddPositions(const LaunchContext& context, const AddPositionsCall& call) {
  Launch(context, AddPositionsKernel, dim3(call.rows), dim3(kThreads), 0, call);
}

void RunPatchHeads(const LaunchContext& context, const PatchHeadsCall& call) {
  CHECK_OK(PatchHeadsSupports(call.num_heads, call.head_dim));
  Launch(context, PatchHeadsKernel, dim3(call.rows), dim3(call.num_heads * call.head_dim / 4), 0,
         call);
}

void RunGate(const LaunchContext& context, const GateCall& call) {
  CHECK_EQ(call.width % 8, 0);
  Launch(context, GateKernel, BlocksFor(int64_t{call.rows} * call.width / 8, kThreads),
         dim3(kThreads), 0, call);
}

void RunPoolCells(const LaunchContext& context, const PoolCellsCall& call) {
  CHECK_OK(TowerRowsSupports(call.dim));
  WithQuads(call.dim, [&](auto quads) {
    Launch(context, PoolCellsKernel<decltype(quads)::value>, BlocksFor(call.cells, kWarps),
           dim3(kThreads), 0, call);
  });
}

void RunLayerNorm(const LaunchContext& context, const LayerNormCall& call) {
  CHECK_LE(call.dim, kMaxCellDim);
  Launch(context, LayerNormKernel, dim3(call.rows), dim3(kNormThreads), call.dim * sizeof(float),
         call);
}

void RunEmbedCells(const LaunchContext& context, const EmbedCellsCall& call) {
  CHECK_LE(call.dim, kMaxCellDim);
  Launch(context, EmbedCellsKernel, dim3(call.rows), dim3(kNormThreads), call.dim * sizeof(float),
         call);
}

}  // namespace lapidary::cuda
