// The router for many rows: a block has all of k of some rows, and all experts.
#include <cstddef>

#include "ops/cuda/moe/expert_choice.cuh"
#include "ops/cuda/moe/moe_groups.h"
#include "ops/cuda/moe/router_sums.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kChunk = kRouterChunk;
constexpr int kVector = kRouterVector;
constexpr int kChunkVectors = kChunk / kVector;
constexpr int kMaxChunks = kRouterSlices * kRouterStrands;

// A warp multiplies 16 kExpertTiles experts by 8 kRowTiles rows. A stage of the pipeline has as
// many chunks as there are threads to split their values.
template <int kExpertTiles, int kRowTiles>
struct WideTile {
  static constexpr int kExpertWarps = kHeldExperts / (16 * kExpertTiles);
  static constexpr int kRows = kWarps / kExpertWarps * 8 * kRowTiles;
  static constexpr int kStageChunks = kThreads / (kRows * kChunkVectors);

  // Vectors of bf16: 64 bytes of a chunk of an expert or a row side by side, so that the lanes of
  // a fragment find all banks.
  struct Stage {
    uint4 weights[kStageChunks][kHeldExperts][kChunkVectors];
    uint4 parts[kRouterParts][kStageChunks][kRows][kChunkVectors];
  };
  struct Shared {
    union {
      Stage stages[2];
      float logits[kRows][kHeldExperts + 4];
    };
    float router_scale[kMaxChunks * kChunk];
    float squares[kMaxChunks][kRows];
    float inverse[kRows];
    float scales[kHeldExperts];
  };
};

template <int kExpertTiles, int kRowTiles>
struct WideRouter {
  using Tile = WideTile<kExpertTiles, kRowTiles>;
  static constexpr int kRows = Tile::kRows;
  static constexpr int kStageChunks = Tile::kStageChunks;

  const RouteCall& call;
  typename Tile::Shared& shared;
  const RouterChunks chunks = RouterChunks(call.shape.hidden);
  const int first_row = static_cast<int>(blockIdx.x) * kRows;
  const int num_rows = min(kRows, call.shape.rows - first_row);
  const int warp = threadIdx.x / kWarpSize;
  const int g = threadIdx.x % kWarpSize / 4;
  const int t = threadIdx.x % 4;
  // What the warp multiplies.
  __device__ __forceinline__ int WarpExpert() const {
    return warp % Tile::kExpertWarps * (16 * kExpertTiles);
  }
  __device__ __forceinline__ int WarpRow() const {
    return warp / Tile::kExpertWarps * (8 * kRowTiles);
  }
  // The vector that the thread splits of every stage.
  const int own_row = static_cast<int>(threadIdx.x) / kChunkVectors % kRows;
  const int own_chunk = static_cast<int>(threadIdx.x) / (kChunkVectors * kRows);
  int slice_left = chunks.per_slice;  // chunks until a slice ends
  float slice_sums[kExpertTiles][kRowTiles][4] = {};
  float sums[kExpertTiles][kRowTiles][4] = {};

  __device__ __forceinline__ int OwnAt(int stage) const {
    return (stage * kStageChunks + own_chunk) * kChunk + t * kVector;
  }

  __device__ __forceinline__ void CopyWeights(int stage) const {
    const int hidden = call.shape.hidden;
    const bf16* weights = static_cast<const bf16*>(call.router_weight.data);
    constexpr int kVectors = kStageChunks * kHeldExperts * kChunkVectors;
    static_assert(kVectors % kThreads == 0);
#pragma unroll
    for (int turn = 0; turn < kVectors / kThreads; ++turn) {
      const int idx = turn * kThreads + static_cast<int>(threadIdx.x);
      const int expert = idx / kChunkVectors % kHeldExperts;
      const int chunk = idx / (kChunkVectors * kHeldExperts);
      const int at = (stage * kStageChunks + chunk) * kChunk + t * kVector;
      const bool is_inside = expert < call.shape.num_experts && at < hidden;
      CopyAsync(&shared.stages[stage % 2].weights[chunk][expert][t],
                is_inside ? weights + expert * hidden + at : weights, is_inside);
    }
    CommitCopies();
  }

  __device__ __forceinline__ void LoadOwn(int stage, float (&values)[kVector]) const {
    const int at = OwnAt(stage);
#pragma unroll
    for (float& value : values) value = 0.0f;
    if (own_row >= num_rows || at >= call.shape.hidden) return;
    LoadFloats(call.h + int64_t{first_row + own_row} * call.shape.hidden + at, values);
  }

  __device__ __forceinline__ void SplitOwn(int stage, float (&values)[kVector]) const {
    const int chunk = stage * kStageChunks + own_chunk;
    const float squares = SumOverChunk(AddSquares(values, 0.0f));
    if (t == 0 && chunk < chunks.all) shared.squares[chunk][own_row] = squares;
    if (OwnAt(stage) < call.shape.hidden) {
      float scale[kVector];
      LoadFloats(shared.router_scale + OwnAt(stage), scale);
#pragma unroll
      for (int idx = 0; idx < kVector; ++idx) values[idx] *= scale[idx];
    }
    const SplitVector split(values);
#pragma unroll
    for (int part = 0; part < kRouterParts; ++part) {
      shared.stages[stage % 2].parts[part][own_chunk][own_row][t] = split.parts[part];
    }
  }

  __device__ __forceinline__ void Multiply(int stage) {
    const typename Tile::Stage& from = shared.stages[stage % 2];
#pragma unroll 1
    for (int idx = 0; idx < kStageChunks; ++idx) {
      const int chunk = stage * kStageChunks + idx;
      if (chunk >= chunks.all) break;
      uint4 low[kExpertTiles], high[kExpertTiles];
#pragma unroll
      for (int e = 0; e < kExpertTiles; ++e) {
        low[e] = from.weights[idx][WarpExpert() + 16 * e + g][t];
        high[e] = from.weights[idx][WarpExpert() + 16 * e + g + 8][t];
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        float acc[kExpertTiles][kRouterParts][4] = {};
#pragma unroll
        for (int part = 0; part < kRouterParts; ++part) {
          const uint4 rows = from.parts[part][idx][WarpRow() + 8 * r + g][t];
#pragma unroll
          for (int e = 0; e < kExpertTiles; ++e) MmaChunk(acc[e][part], low[e], high[e], rows);
        }
#pragma unroll
        for (int e = 0; e < kExpertTiles; ++e) {
#pragma unroll
          for (int of = 0; of < 4; ++of) {
            slice_sums[e][r][of] += acc[e][0][of] + acc[e][1][of] + acc[e][2][of];
          }
        }
      }
      if (--slice_left == 0 || chunk + 1 == chunks.all) EndSlice();
    }
  }

  __device__ __forceinline__ void EndSlice() {
    slice_left = chunks.per_slice;
#pragma unroll
    for (int e = 0; e < kExpertTiles; ++e) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int of = 0; of < 4; ++of) {
          sums[e][r][of] += slice_sums[e][r][of];
          slice_sums[e][r][of] = 0.0f;
        }
      }
    }
  }

  __device__ __forceinline__ void StoreSums() const {
#pragma unroll
    for (int e = 0; e < kExpertTiles; ++e) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int of = 0; of < 4; ++of) {
          const int expert = WarpExpert() + 16 * e + g + of / 2 * 8;
          shared.logits[WarpRow() + 8 * r + 2 * t + of % 2][expert] = sums[e][r][of];
        }
      }
    }
  }

  // A thread for each row.
  __device__ __forceinline__ void StoreInverse() const {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= kRows) return;
    float sum = 0.0f;
    for (int first = 0; first < chunks.all; first += chunks.per_slice) {
      float slice_sum = 0.0f;
      for (int chunk = first; chunk < min(first + chunks.per_slice, chunks.all); ++chunk) {
        slice_sum += shared.squares[chunk][row];
      }
      sum += slice_sum;
    }
    shared.inverse[row] = rsqrtf(sum / static_cast<float>(call.shape.hidden) + call.eps);
  }

  __device__ __forceinline__ void ChooseRows(int32_t* places) const {
    constexpr int kPerLane = kHeldExperts / kWarpSize;
    const int lane = threadIdx.x % kWarpSize;
    const int top_k = call.shape.top_k;
    const float input_scale = rsqrtf(static_cast<float>(call.shape.hidden));
    for (int row = warp; row < num_rows; row += kWarps) {
      float logits[kPerLane];
#pragma unroll
      for (int idx = 0; idx < kPerLane; ++idx) {
        const float sum = shared.logits[row][idx * kWarpSize + lane];
        logits[idx] = sum * shared.inverse[row] * input_scale;
      }
      const ExpertOfRank chosen = ChooseExperts(logits, call.shape.num_experts, top_k);
      const int64_t at = int64_t{first_row + row} * top_k;
      StoreChoice(chosen, top_k, shared.scales, call.experts + at, call.weights + at);
      if (lane < top_k) places[at + lane] = atomicAdd(call.counters + chosen.expert, 1);
    }
  }

  __device__ __forceinline__ void StoreX() const {
    constexpr int kAtOnce = 4;  // loads under way
    const int hidden = call.shape.hidden;
    const int row_vectors = hidden / kVector;
    const int num_vectors = num_rows * row_vectors;
    const float* h = call.h + int64_t{first_row} * hidden;
    bf16* to = call.x + int64_t{first_row} * hidden;
    for (int first = threadIdx.x; first < num_vectors; first += kAtOnce * kThreads) {
      float values[kAtOnce][kVector], x[kAtOnce][kVector];
#pragma unroll
      for (int turn = 0; turn < kAtOnce; ++turn) {
        const int idx = min(first + turn * kThreads, num_vectors - 1);
        LoadFloats(h + idx * kVector, values[turn]);
        LoadFloats(call.pre_norm + idx % row_vectors * kVector, x[turn]);
      }
#pragma unroll
      for (int turn = 0; turn < kAtOnce; ++turn) {
        const int idx = first + turn * kThreads;
        if (idx >= num_vectors) break;
        NormToX(values[turn], shared.inverse[idx / row_vectors], x[turn]);
        Store8(to + idx * kVector, x[turn]);
      }
    }
  }

  __device__ __forceinline__ void Run(int32_t* places) {
    const int num_stages = (chunks.all + kStageChunks - 1) / kStageChunks;
    CopyWeights(0);
    for (int at = threadIdx.x; at < call.shape.hidden; at += kThreads) {
      shared.router_scale[at] = call.router_scale[at];
    }
    __syncthreads();
    if (threadIdx.x < call.shape.num_experts) {
      shared.scales[threadIdx.x] = call.per_expert_scale[threadIdx.x];
    }
    WaitForPreviousKernel();
    float values[kVector];
    LoadOwn(0, values);
    for (int stage = 0; stage < num_stages; ++stage) {
      SplitOwn(stage, values);
      if (stage + 1 < num_stages) LoadOwn(stage + 1, values);
      WaitForCopies<0>();
      __syncthreads();  // The stage is there, and all are done with the one before.
      if (stage + 1 < num_stages) CopyWeights(stage + 1);
      Multiply(stage);
    }
    __syncthreads();
    StoreInverse();
    StoreSums();
    __syncthreads();
    ChooseRows(places);
    StoreX();
  }
};

template <int kExpertTiles, int kRowTiles>
__global__ void __launch_bounds__(kThreads, 1)
    WideRouterKernel(const __grid_constant__ RouteCall call, int32_t* places) {
  extern __shared__ __align__(16) std::byte memory[];
  using Router = WideRouter<kExpertTiles, kRowTiles>;
  AllowNextKernel();
  Router router{call, *reinterpret_cast<typename Router::Tile::Shared*>(memory)};
  router.Run(places);
}

template <int kExpertTiles, int kRowTiles>
void Run(const LaunchContext& context, const RouteCall& call, int32_t* places) {
  using Tile = WideTile<kExpertTiles, kRowTiles>;
  Launch(context, WideRouterKernel<kExpertTiles, kRowTiles>,
         dim3((call.shape.rows + Tile::kRows - 1) / Tile::kRows), dim3(kThreads),
         sizeof(typename Tile::Shared), call, places);
}

}  // namespace

void RunWideRouter(const LaunchContext& context, const RouteCall& call, const MoeScratch& scratch) {
  const int rows = call.shape.rows;
  const int num_sms = context.Device().num_sms;
  // The smallest tile with which all rows are on the GPU at once.
  if (rows <= num_sms * WideTile<2, 1>::kRows) {
    Run<2, 1>(context, call, scratch.places);
  } else {
    Run<2, 2>(context, call, scratch.places);
  }
}

}  // namespace lapidary::cuda
