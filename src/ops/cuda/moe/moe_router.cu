// The router: logits of the residual rows, the choice from them, and x, the same rows under the
// experts' norm.
//
// Eight blocks of a cluster have a slice of the hidden dimension each and keep the slice of all
// experts' weights, one chunk of 32 values in the registers of each multiplying warp. They take
// eight rows at a time. Sums of a slice go to the block that chooses for the row, and the sums of
// squares to all. The choosing warp runs behind the others, by up to kRing tiles of rows.
#include <algorithm>
#include <cstddef>

#include "ops/cuda/active_clusters.h"
#include "ops/cuda/moe/expert_choice.cuh"
#include "ops/cuda/moe/moe_groups.h"
#include "ops/cuda/moe/router_sums.cuh"
#include "ops/cuda/moe/row_groups.cuh"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/ptx/tma.cuh"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kSlices = kRouterSlices;    // and blocks of a cluster
constexpr int kTileRows = 8;              // one for each block of a cluster
constexpr int kStrands = kRouterStrands;  // multiplying warps
constexpr int kChunk = kRouterChunk;
constexpr int kVector = kRouterVector;
constexpr int kMultipliers = kStrands * kWarpSize;
constexpr int kThreads = kMultipliers + kWarpSize;
constexpr int kRing = 4;
constexpr int kNarrowRows = 2;  // up to here one column of an instruction holds one part

struct RouterShared {
  // By warp, row (narrow: two rows of each part) and expert. The padding spreads rows over banks.
  float partials[kStrands][kTileRows][kHeldExperts + 4];
  float strand_squares[kStrands][kTileRows];
  float logits[kRing][kSlices][kMaxExperts];  // the chosen row's, by slice of k
  float squares[kRing][kSlices][kTileRows];   // of all rows
  float scales[kMaxExperts];
  uint64_t here[kRing];    // both of a tile of rows have come
  uint64_t chosen[kRing];  // and were read
  ExpertRows by_expert;
  int is_last;
};

// The slice of k of a block, and the tile of rows.
struct Slice {
  int first_chunk;
  int num_chunks;
  int num_strands;  // warps that have a chunk

  __device__ __forceinline__ Slice(int hidden, int slice) {
    const RouterChunks chunks(hidden);
    first_chunk = min(slice * chunks.per_slice, chunks.all);
    num_chunks = min(chunks.per_slice, chunks.all - first_chunk);
    num_strands = min(kStrands, num_chunks);
  }
};

struct TileRows {
  int first;
  int count;
  __device__ __forceinline__ TileRows(int tile, int rows)
      : first(tile * kTileRows), count(min(kTileRows, rows - first)) {}
};

__device__ __forceinline__ void SyncMultipliers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kMultipliers) : "memory");
}

__device__ __forceinline__ uint32_t ParityOf(int iteration) {
  return static_cast<uint32_t>(iteration / kRing % 2);
}

// The warp's weights of a chunk: experts g and g + 8 of each 16.
template <int kExpertTiles>
__device__ __forceinline__ void LoadWeights(const RouteCall& call, int first_expert, int at,
                                            bool is_inside, uint4 (&low)[kExpertTiles],
                                            uint4 (&high)[kExpertTiles]) {
  const int hidden = call.shape.hidden;
  const int num_experts = call.shape.num_experts;
  const int expert = first_expert + static_cast<int>(threadIdx.x) % kWarpSize / 4;
  const bf16* weight =
      static_cast<const bf16*>(call.router_weight.data) + int64_t{expert} * hidden + at;
#pragma unroll
  for (int e = 0; e < kExpertTiles; ++e) {
    const bf16* from = weight + int64_t{16} * e * hidden;
    low[e] = LoadWeight(from, is_inside && expert + 16 * e < num_experts);
    high[e] =
        LoadWeight(from + int64_t{8} * hidden, is_inside && expert + 16 * e + 8 < num_experts);
  }
}

__device__ __forceinline__ float InverseRms(const float (&squares)[kSlices][kTileRows], int row,
                                            int hidden, float eps) {
  float sum = 0.0f;
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) sum += squares[slice][row];
  return rsqrtf(sum / static_cast<float>(hidden) + eps);
}

// What the kernel is built for; the order of sums is the same.
enum class RouterForm {
  kNarrow,  // as kHeld, and at most two rows
  kHeld,    // at most 128 experts and 2816 values: a warp has one chunk
  kGeneral,
};

// A multiplying warp.
template <RouterForm kForm>
struct Multiplier {
  const RouteCall& call;
  RouterShared& shared;
  const Slice slice;
  const int rank;
  static constexpr bool kNarrow = kForm == RouterForm::kNarrow;
  static constexpr bool kHolds = kForm != RouterForm::kGeneral;
  static constexpr int kExpertTiles = kHolds ? kHeldExperts / 16 : 4;
  static constexpr int kExpertsAtOnce = 16 * kExpertTiles;
  const int warp = threadIdx.x / kWarpSize;
  const int g = threadIdx.x % kWarpSize / 4;
  const int t = threadIdx.x % 4;
  const int row = kNarrow ? g % kNarrowRows : g;
  uint4 low[kExpertTiles], high[kExpertTiles];
  float scale[kVector];

  // Where in a row the lane's values of the warp's chunk `turn` are.
  __device__ __forceinline__ int At(int turn) const {
    return (slice.first_chunk + warp + turn * kStrands) * kChunk + kVector * t;
  }
  __device__ __forceinline__ bool HasChunk(int turn) const {
    return warp + turn * kStrands < slice.num_chunks;
  }
  __device__ __forceinline__ bool IsInside(int turn) const {
    return HasChunk(turn) && At(turn) < call.shape.hidden;
  }

  // What no kernel before writes.
  __device__ __forceinline__ void Hold(int pass, int turn) {
    LoadWeights(call, pass * kExpertsAtOnce, At(turn), IsInside(turn), low, high);
#pragma unroll
    for (float& value : scale) value = 0.0f;
    if (IsInside(turn)) LoadFloats(call.router_scale + At(turn), scale);
  }

  __device__ __forceinline__ void LoadRow(int tile, int turn, float (&values)[kVector]) const {
    const TileRows rows(tile, call.shape.rows);
#pragma unroll
    for (float& value : values) value = 0.0f;
    if (row >= rows.count || !IsInside(turn)) return;
    LoadFloats(call.h + int64_t{rows.first + row} * call.shape.hidden + At(turn), values);
  }

  // The chunk's products, to the partial sums.
  __device__ __forceinline__ void Multiply(const float (&values)[kVector], bool is_first) {
    float scaled[kVector];
#pragma unroll
    for (int idx = 0; idx < kVector; ++idx) scaled[idx] = values[idx] * scale[idx];
    const SplitVector split(scaled);
    const int column_part = g / kNarrowRows;
    uint4 of_column = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int part = 0; part < kRouterParts; ++part) {
      if (column_part == part) of_column = split.parts[part];
    }
#pragma unroll
    for (int e = 0; e < kExpertTiles; ++e) {
      float acc[kRouterParts][4] = {};
      if constexpr (kNarrow) {
        MmaChunk(acc[0], low[e], high[e], of_column);
      } else {
#pragma unroll
        for (int part = 0; part < kRouterParts; ++part) {
          MmaChunk(acc[part], low[e], high[e], split.parts[part]);
        }
      }
#pragma unroll
      for (int idx = 0; idx < 4; ++idx) {
        float& to = shared.partials[warp][2 * t + idx % 2][16 * e + g + idx / 2 * 8];
        const float sum = kNarrow ? acc[0][idx] : acc[0][idx] + acc[1][idx] + acc[2][idx];
        to = is_first ? sum : to + sum;
      }
    }
  }

  // Sums of squares of a warp's rows.
  __device__ __forceinline__ void StoreSquares(float sum) {
    sum = SumOverChunk(sum);
    if (t == 0 && g == row) shared.strand_squares[warp][row] = sum;
  }

  // The warps' sums in their order, each to the block that chooses for the row.
  __device__ __forceinline__ void SendLogits(int iteration, int num_rows, int pass) const {
    constexpr int kPairs = kExpertsAtOnce / 2;
    const int slot = iteration % kRing;
    const int num_pairs = min(kPairs, (call.shape.num_experts - pass * kExpertsAtOnce + 1) / 2);
#pragma unroll 1
    for (int idx = threadIdx.x; idx < num_rows * kPairs; idx += kMultipliers) {
      const int of_row = idx / kPairs;
      const int pair = idx % kPairs;
      if (pair >= num_pairs) continue;
      float2 sum = {0.0f, 0.0f};
#pragma unroll
      for (int strand = 0; strand < kStrands; ++strand) {
        if (strand >= slice.num_strands) break;
        const auto part = [&](int column) {
          return *reinterpret_cast<const float2*>(&shared.partials[strand][column][2 * pair]);
        };
        float2 own = part(of_row);
        if constexpr (kNarrow) {
#pragma unroll
          for (int idx_part = 1; idx_part < kRouterParts; ++idx_part) {
            const float2 other = part(kNarrowRows * idx_part + of_row);
            own = {own.x + other.x, own.y + other.y};
          }
        }
        sum = {sum.x + own.x, sum.y + own.y};
      }
      const float* to = &shared.logits[slot][rank][pass * kExpertsAtOnce + 2 * pair];
      SendToBlock(AddressInBlock(SharedAddress(to), of_row),
                  AddressInBlock(SharedAddress(&shared.here[slot]), of_row), sum);
    }
  }

  // Sums of squares to all blocks. A tile's slot is free when the choices kRing tiles back were
  // made everywhere: a block sends squares only when its own are made up to three tiles back, and
  // we have those of the tile before.
  __device__ __forceinline__ void SendSquares(int iteration) const {
    const int slot = iteration % kRing;
    constexpr int kRowPairs = kTileRows / 2;
    const int sender = static_cast<int>(threadIdx.x) - (kMultipliers - kSlices * kRowPairs);
    if (sender < 0) return;
    const int to_rank = sender / kRowPairs;
    const int first_row = sender % kRowPairs * 2;
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int strand = 0; strand < kStrands; ++strand) {
      if (strand >= slice.num_strands) break;
      sum.x += shared.strand_squares[strand][first_row];
      sum.y += shared.strand_squares[strand][first_row + 1];
    }
    constexpr int kBehind = kRing - 1;
    if (iteration >= kBehind) {
      const int read = iteration - kBehind;
      AwaitBarrier(SharedAddress(&shared.chosen[read % kRing]), ParityOf(read));
    }
    SendToBlock(AddressInBlock(SharedAddress(&shared.squares[slot][rank][first_row]), to_rank),
                AddressInBlock(SharedAddress(&shared.here[slot]), to_rank), sum);
  }

  __device__ __forceinline__ void StoreChunkOfX(int tile, int turn, float inverse,
                                                const float (&values)[kVector]) const {
    const TileRows rows(tile, call.shape.rows);
    if (row >= rows.count || row != g || !IsInside(turn)) return;
    float x[kVector];
    LoadFloats(call.pre_norm + At(turn), x);
    NormToX(values, inverse, x);
    Store8(call.x + int64_t{rows.first + row} * call.shape.hidden + At(turn), x);
  }

  __device__ __forceinline__ void Run(int first_tile, int tile_step, int num_tiles) {
    const int num_passes =
        kHolds ? 1 : (call.shape.num_experts + kExpertsAtOnce - 1) / kExpertsAtOnce;
    const int num_turns = kHolds ? 1 : (slice.num_chunks + kStrands - 1) / kStrands;
    float values[kVector];
    LoadRow(first_tile, 0, values);
#pragma unroll 1
    for (int tile = first_tile, iteration = 0; tile < num_tiles; tile += tile_step, ++iteration) {
      const int num_rows = TileRows(tile, call.shape.rows).count;
      float squares = 0.0f;
      for (int pass = 0; pass < num_passes; ++pass) {
        for (int turn = 0; turn < num_turns; ++turn) {
          if constexpr (!kHolds) {
            Hold(pass, turn);
            LoadRow(tile, turn, values);
          }
          if (pass == 0) squares = AddSquares(values, squares);
          if (HasChunk(turn)) Multiply(values, turn == 0);
        }
        if (pass == 0) StoreSquares(squares);
        SyncMultipliers();
        if (pass == 0) SendSquares(iteration);
        SendLogits(iteration, num_rows, pass);
        SyncMultipliers();
      }
      const bool is_last = tile + tile_step >= num_tiles;
      float next[kVector] = {};
      if (kHolds && !is_last) LoadRow(tile + tile_step, 0, next);
      StoreX(tile, iteration, num_turns, values);
#pragma unroll
      for (int idx = 0; idx < kVector; ++idx) values[idx] = next[idx];
    }
  }

  __device__ __forceinline__ void StoreX(int tile, int iteration, int num_turns,
                                         float (&values)[kVector]) const {
    const int slot = iteration % kRing;
    WaitForBytes(SharedAddress(&shared.here[slot]), ParityOf(iteration));
    const float inverse = InverseRms(shared.squares[slot], row, call.shape.hidden, call.eps);
    for (int turn = 0; turn < num_turns; ++turn) {
      if constexpr (!kHolds) LoadRow(tile, turn, values);
      StoreChunkOfX(tile, turn, inverse, values);
    }
  }
};

struct RouterParams {
  RouteCall call;
  MoeScratch scratch;
  int num_tiles;
  bool counts_by_expert;  // rows are grouped later

  __device__ __forceinline__ bool GroupsRows() const {
    return !counts_by_expert && call.plan.kernel != GroupPlan::Kernel::kFewRows;
  }
};

// The choosing warp: of each tile, the row that is the block's number in its cluster.
template <int kPerLane>
__device__ __forceinline__ void ChooseRows(const RouterParams& params, RouterShared& shared,
                                           int rank, int first_tile, int tile_step) {
  const RouteCall& call = params.call;
  const int lane = threadIdx.x % kWarpSize;
  const int num_experts = call.shape.num_experts;
  const int top_k = call.shape.top_k;
  const float input_scale = rsqrtf(static_cast<float>(call.shape.hidden));
  for (int tile = first_tile, iteration = 0; tile < params.num_tiles;
       tile += tile_step, ++iteration) {
    const TileRows rows(tile, call.shape.rows);
    const int slot = iteration % kRing;
    const bool chooses = rank < rows.count;
    if (lane == 0) {
      constexpr int kSquareBytes = kSlices * kTileRows * static_cast<int>(sizeof(float));
      const int logit_bytes = kSlices * ((num_experts + 1) / 2) * static_cast<int>(sizeof(float2));
      ExpectBytes(SharedAddress(&shared.here[slot]), kSquareBytes + (chooses ? logit_bytes : 0));
    }
    WaitForBytes(SharedAddress(&shared.here[slot]), ParityOf(iteration));
    float logits[kPerLane];
    const float inverse = InverseRms(shared.squares[slot], rank, call.shape.hidden, call.eps);
#pragma unroll
    for (int idx = 0; idx < kPerLane; ++idx) {
      float sum = 0.0f;
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        sum += shared.logits[slot][slice][idx * kWarpSize + lane];
      }
      logits[idx] = sum * inverse * input_scale;
    }
    __syncwarp();
    if (lane == 0) ArriveAtBarrier(SharedAddress(&shared.chosen[slot]));
    if (!chooses) continue;
    const ExpertOfRank chosen = ChooseExperts(logits, num_experts, top_k);
    const int64_t row = rows.first + rank;
    StoreChoice(chosen, top_k, shared.scales, call.experts + row * top_k,
                call.weights + row * top_k);
    if (lane >= top_k) continue;
    if (params.counts_by_expert) {
      params.scratch.places[row * top_k + lane] = atomicAdd(call.counters + chosen.expert, 1);
    }
  }
}

template <RouterForm kForm>
__global__ void __launch_bounds__(kThreads, 1)
    RouterKernel(const __grid_constant__ RouterParams params) {
  extern __shared__ __align__(16) std::byte memory[];
  RouterShared& shared = *reinterpret_cast<RouterShared*>(memory);
  const RouteCall& call = params.call;
  const int rank = blockIdx.x % kSlices;
  const int first_tile = blockIdx.x / kSlices;
  const int tile_step = gridDim.x / kSlices;
  const int lane = threadIdx.x % kWarpSize;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int slot = 0; slot < kRing; ++slot) {
      InitBarrier(SharedAddress(&shared.here[slot]), 1);
      InitBarrier(SharedAddress(&shared.chosen[slot]), 1);
    }
    PublishByteBarriers();
  }
  __syncwarp();
  ArriveAtCluster();
  if (!call.leaves_room) AllowNextKernel();
  if (threadIdx.x < kMultipliers) {
    Multiplier<kForm> multiplier{call, shared, Slice(call.shape.hidden, rank), rank};
    if constexpr (kForm != RouterForm::kGeneral) multiplier.Hold(0, 0);
    WaitForCluster();  // All have set up their barriers.
    WaitForPreviousKernel();
    if (call.leaves_room) AllowNextKernel();
    multiplier.Run(first_tile, tile_step, params.num_tiles);
  } else {
    for (int expert = lane; expert < call.shape.num_experts; expert += kWarpSize) {
      shared.scales[expert] = call.per_expert_scale[expert];
    }
    __syncwarp();
    WaitForCluster();
    WaitForPreviousKernel();
    if (call.leaves_room) AllowNextKernel();
    constexpr int kPerLane =
        (kForm == RouterForm::kGeneral ? kMaxExperts : kHeldExperts) / kWarpSize;
    ChooseRows<kPerLane>(params, shared, rank, first_tile, tile_step);
    if (params.GroupsRows()) {
      __threadfence();
      __syncwarp();
      if (lane == 0) shared.is_last = atomicAdd(call.counters + kMaxExperts, 1) == gridDim.x - 1;
    }
  }
  if (!params.GroupsRows()) return;
  __syncthreads();
  if (!shared.is_last) return;
  __threadfence();
  if (threadIdx.x == 0) call.counters[kMaxExperts] = 0;
  GroupRows(call.shape, call.plan, call.experts, shared.by_expert, params.scratch);
}

}  // namespace

void RunRouter(const LaunchContext& context, const RouteCall& call, const MoeScratch& scratch) {
  const MoeShape& shape = call.shape;
  const int num_tiles = (shape.rows + kTileRows - 1) / kTileRows;
  const RouterParams params{.call = call,
                            .scratch = scratch,
                            .num_tiles = num_tiles,
                            .counts_by_expert = shape.rows > kMaxRowsGroupedByRouter};
  const auto kernel = !IsHeld(shape)              ? RouterKernel<RouterForm::kGeneral>
                      : shape.rows <= kNarrowRows ? RouterKernel<RouterForm::kNarrow>
                                                  : RouterKernel<RouterForm::kHeld>;
  // Those beyond would wait until the first are done.
  const int at_once = MaxActiveClusters(context.Device(), reinterpret_cast<const void*>(kernel),
                                        kSlices, kThreads, sizeof(RouterShared));
  const int num_clusters = std::min(num_tiles, std::max(at_once, 1));
  LaunchClusters(context, kernel, kSlices, dim3(kSlices * num_clusters), dim3(kThreads),
                 sizeof(RouterShared), params);
}

}  // namespace lapidary::cuda
