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

// A warp per row. Six blocks on an SM are 3,168 rows of L's width at once, more than a picture has.
template <int kQuads>
__global__ void __launch_bounds__(kThreads, kQuads <= 6   ? 8
                                            : kQuads <= 9 ? 6
                                                          : 3)
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
  // Under way with the row, and bf16 until it is used, in half the registers.
  uint2 addend[kQuads];
  if (call.addend != nullptr) {
    ForEachOfLane<kQuads>(num_quads, [&](int idx, int quad) {
      addend[idx] = reinterpret_cast<const uint2*>(call.addend + at)[quad];
    });
  }
  if (call.bias != nullptr) {
    row.ForEach(num_quads, [&](int quad, float4& v) {
      v = MulAdd(v, 1.0f, reinterpret_cast<const float4*>(call.bias)[quad]);
    });
  }
  if (call.addend != nullptr) {
    float inverse = 1.0f;
    if (call.addend_norm != nullptr) {
      float sum = 0.0f;
      ForEachOfLane<kQuads>(num_quads, [&](int idx, int) {
        sum = AddSquares(sum, Clamp(UnpackBf16x4(addend[idx]), call.addend_bounds));
      });
      inverse = InverseRms(WarpSum(sum), call.dim, call.eps);
    }
    ForEachOfLane<kQuads>(num_quads, [&](int idx, int quad) {
      float4 v = Clamp(UnpackBf16x4(addend[idx]), call.addend_bounds);
      if (call.addend_norm != nullptr) {
        v = Normed(v, inverse, reinterpret_cast<const float4*>(call.addend_norm)[quad]);
      }
      row.quads[idx] = MulAdd(v, call.addend_scale, row.quads[idx]);
    });
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

constexpr int kHeadsRows = 2;         // of a block
constexpr int kMaxHeadThreads = 512;  // at most 256 pieces of 8 dims to a row

// What the threads of a block tell each other. Pairs of dims lie by their place in a piece first,
// so that threads with neighbouring pieces share no bank.
struct PatchHeadsShared {
  float4* turns;   // [rows, q and k, 4, pieces of a head]: of a pair's dims, as MakeTurns has them
  float4* sums;    // [threads]: of the squares of q, k and v
  uint32_t* dims;  // [q and k, 4, threads]: pairs as they were loaded

  static size_t Bytes(int head_dim, int num_threads) {
    return sizeof(float4) * (kHeadsRows * head_dim + num_threads) +
           sizeof(uint32_t) * 2 * 4 * num_threads;
  }
  __device__ PatchHeadsShared(float4* memory, int head_dim, int num_threads)
      : turns(memory),
        sums(turns + kHeadsRows * head_dim),
        dims(reinterpret_cast<uint32_t*>(sums + num_threads)) {}
};

// Dims j and j + quarter of either half of a head turn together. Quarters are even, so the partners
// of a pair are a pair.
__device__ __forceinline__ int Partner(int dim, int quarter) {
  const int in_half = dim < 2 * quarter ? dim : dim - 2 * quarter;
  return in_half < quarter ? dim + quarter : dim - quarter;
}

// For dims `dim` and the next, of q and of k: what each is multiplied by, and what its partner is.
__device__ __forceinline__ void MakeTurns(const PatchHeadsCall& call, int head_dim,
                                          const GridPlace& grid, int dim, float4* turns) {
  const int quarter = head_dim / 4;
  const int partner = Partner(dim, quarter);
  const int lower = min(dim, partner);
  const float4 by = *reinterpret_cast<const float4*>(
      call.rope +
      (lower < quarter ? grid.column * quarter + lower : grid.row * quarter + lower - 2 * quarter));
  const float sign = partner < dim ? 1.0f : -1.0f;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const float* const norm = part == 0 ? call.q_norm : call.k_norm;
    const float2 weight = *reinterpret_cast<const float2*>(norm + dim);
    const float2 partners = *reinterpret_cast<const float2*>(norm + partner);
    const int at = (part * 4 + dim / 2 % 4) * (head_dim / 8) + dim / 8;
    turns[at] = {weight.x * by.x, sign * partners.x * by.y, weight.y * by.z,
                 sign * partners.y * by.w};
  }
}

__device__ __forceinline__ float2 UnpackPair(uint32_t pair, const Bounds& bounds) {
  return {Clamp(__uint_as_float(pair << 16), bounds),
          Clamp(__uint_as_float(pair & 0xffff0000u), bounds)};
}

// A thread has a piece of eight dims of a head, of q, k and v: 16 bytes to load and to store of
// each. kHeadDim: 0 for any.
template <int kHeadDim>
__global__ void __launch_bounds__(kMaxHeadThreads)
    PatchHeadsKernel(const __grid_constant__ PatchHeadsCall call) {
  extern __shared__ __align__(16) float4 heads_memory[];
  AllowNextKernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int num_threads = static_cast<int>(blockDim.x);
  const int head_dim = kHeadDim != 0 ? kHeadDim : call.head_dim;
  const int num_pieces = head_dim / 8;
  const int block_head = thread / num_pieces;  // of all the block's rows
  const int block_row = block_head < call.num_heads ? 0 : 1;
  const int head = block_head - block_row * call.num_heads;
  const int piece = thread - block_head * num_pieces;
  const int first_row = static_cast<int>(blockIdx.x) * kHeadsRows;
  // A block's row behind the last is the last once more, and not stored.
  const int last_row = call.rows - 1;
  const int64_t row = min(first_row + block_row, last_row);
  const PatchHeadsShared shared(heads_memory, head_dim, num_threads);
  WaitForPreviousKernel();

  uint32_t pairs[3][4];
  float sums[3];
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const bf16* const from = call.projected[part] + row * call.stride + head * head_dim + 8 * piece;
    *reinterpret_cast<uint4*>(pairs[part]) = *reinterpret_cast<const uint4*>(from);
  }
  // While they arrive.
#pragma unroll 1
  for (int idx = thread; idx < kHeadsRows * head_dim / 2; idx += num_threads) {
    const int turned_row = 2 * idx < head_dim ? 0 : 1;
    MakeTurns(call, head_dim, call.places[min(first_row + turned_row, last_row)],
              2 * idx - turned_row * head_dim, shared.turns + turned_row * head_dim);
  }
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    sums[part] = 0.0f;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const float2 values = UnpackPair(pairs[part][pair], call.bounds[part]);
      sums[part] = __fmaf_rn(values.x, values.x, __fmaf_rn(values.y, values.y, sums[part]));
      if (part < 2) shared.dims[(part * 4 + pair) * num_threads + thread] = pairs[part][pair];
    }
  }
  shared.sums[thread] = {sums[0], sums[1], sums[2], 0.0f};
  __syncthreads();
  if (first_row + block_row > last_row) return;

  sums[0] = sums[1] = sums[2] = 0.0f;
  for (int idx = 0; idx < num_pieces; ++idx) {
    const float4 of = shared.sums[thread - piece + idx];
    sums[0] += of.x;
    sums[1] += of.y;
    sums[2] += of.z;
  }
  const float by_dim = __fdividef(1.0f, static_cast<float>(head_dim));
  const int padded_pieces = (head_dim > kHeadRun ? kHeadRun + kHeadTail : kHeadRun) / 8;
  bf16* const tails = call.heads + int64_t{3} * call.num_heads * call.rows * kHeadRun;
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const float inverse = rsqrtf(sums[part] * by_dim + call.eps);
    const float4* const turns = shared.turns + (block_row * 2 + part) * 4 * num_pieces + piece;
    const uint32_t* const dims = shared.dims + part * 4 * num_threads + thread - piece;
    uint32_t packed[4];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      float2 values;
      if (part < 2) {
        const int partner = Partner(8 * piece + 2 * pair, head_dim / 4);
        values = UnpackPair(dims[pair * num_threads + piece], call.bounds[part]);
        const float2 others =
            UnpackPair(dims[partner / 2 % 4 * num_threads + partner / 8], call.bounds[part]);
        const float4 turn = turns[pair * num_pieces];
        values = {values.x * turn.x + others.x * turn.y, values.y * turn.z + others.y * turn.w};
      } else {
        values = UnpackPair(pairs[part][pair], call.bounds[part]);
      }
      packed[pair] = PackBf16x2(values.x * inverse, values.y * inverse);
    }
    const int64_t to_row = (int64_t{part} * call.num_heads + head) * call.rows + row;
    const auto store = [&](int at, uint4 dims_of_piece) {
      constexpr int kRunPieces = kHeadRun / 8;
      bf16* const to = at < kRunPieces ? call.heads + to_row * kHeadRun + 8 * at
                                       : tails + to_row * kHeadTail + 8 * (at - kRunPieces);
      *reinterpret_cast<uint4*>(to) = dims_of_piece;
    };
    store(piece, {packed[0], packed[1], packed[2], packed[3]});
#pragma unroll 1
    for (int rest = piece + num_pieces; rest < padded_pieces; rest += num_pieces) {
      store(rest, {0, 0, 0, 0});
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
  const int num_threads = kHeadsRows * call.num_heads * call.head_dim / 8;
  CHECK_LE(num_threads, kMaxHeadThreads);
  const auto kernel = call.head_dim == 64   ? PatchHeadsKernel<64>
                      : call.head_dim == 72 ? PatchHeadsKernel<72>
                                            : PatchHeadsKernel<0>;
  Launch(context, kernel, BlocksFor(call.rows, kHeadsRows), dim3(num_threads),
         PatchHeadsShared::Bytes(call.head_dim, num_threads), call);
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
