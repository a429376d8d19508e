// The product of groups: a block multiplies some weight rows of an expert by a group's rows, with
// both passing through shared memory, several steps of k at a time. For few rows that is a matter
// of having enough loads under way and nothing that waits behind them; for many, of tiles large
// enough that the cache keeps up. Every dot product is summed in the order of k, sixteen at a time.
#include <type_traits>

#include "base/check.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/moe/moe_groups.h"
#include "ops/cuda/ptx/warp_mma.cuh"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kStep = 64;  // values of k in a stage
constexpr int kRowBytes = kStep * static_cast<int>(sizeof(bf16));

// What a block of kWarps warps multiplies: kWeightRows weight rows by kRows rows, with kStages
// steps in shared memory. A warp has all rows or 32 of them.
template <int kRowsOfTile, int kWeightRowsOfTile, int kWarps, int kStagesOfTile, int kBlocks>
struct Tile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kWeightRows = kWeightRowsOfTile;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kStages = kStagesOfTile;
  static constexpr int kBlocksPerSm = kBlocks;
  static constexpr int kRowWarps = kRows <= 32 ? 1 : kRows / 32;
  static constexpr int kWarpRows = kRows / kRowWarps;
  static constexpr int kWarpWeights = kWeightRows / (kWarps / kRowWarps);
  static constexpr int kRowTiles = kWarpRows / 8;         // of an mma, per warp
  static constexpr int kWeightTiles = kWarpWeights / 16;  // likewise
  static constexpr int kStageBytes = (kWeightRows + kRows) * kRowBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
};

// A row of a stage holds eight vectors of 16 bytes; the same vector of eight rows, which an 8x8
// matrix is loaded from, lies in different banks.
__device__ __forceinline__ int VectorOffset(int row, int vector) {
  return row * kRowBytes + (vector ^ (row % 8)) * 16;
}

// A thread's copies of a step: vector `vector` of every kRowsApart-th row from first_row on, the
// weight rows first, then the rows.
template <typename T>
struct Copies {
  static constexpr int kRowsApart = T::kThreads / 8;
  static constexpr int kWeights = T::kWeightRows / kRowsApart;
  static constexpr int kAll = kWeights + T::kRows / kRowsApart;

  int vector;
  int first_row;
  int sources[kAll];  // where each begins in the weight or the input, in values. -1: zeros

  __device__ __forceinline__ int Row(int copy) const { return first_row + kRowsApart * copy; }
  // Step `step` has something to copy there.
  __device__ __forceinline__ bool IsInside(int step, int copy, int in_dim) const {
    return step * kStep + 8 * vector < in_dim && sources[copy] >= 0;
  }
};

// The rows of a block. A choice (row * top_k + rank) names the row of x and that of the outputs; in
// between, in `act`, it has a position.
struct ListedGroup {
  RowGroup group;
  const int32_t* order;

  __device__ __forceinline__ bool IsEmpty() const { return group.count == 0; }
  __device__ __forceinline__ int Position(int member) const { return group.begin + member; }
  __device__ __forceinline__ int Choice(int member) const { return order[Position(member)]; }

  __device__ __forceinline__ ListedGroup(const GroupProduct& p, int* /*choices*/) : order(p.order) {
    const int num_groups = __ldcg(p.num_groups);
    const int4 words = __ldcg(reinterpret_cast<const int4*>(p.groups + blockIdx.x));
    group = {words.x, words.y, blockIdx.x < num_groups ? words.z : 0, 0};
  }
};

// Every block has a choice, and the expert's rows are its own if that is the first choice of it.
struct FoundGroup {
  RowGroup group;
  const int* choices;  // shared; there for all threads behind the next barrier

  __device__ __forceinline__ bool IsEmpty() const { return group.count == 0; }
  __device__ __forceinline__ int Position(int member) const { return choices[member]; }
  __device__ __forceinline__ int Choice(int member) const { return choices[member]; }

  __device__ __forceinline__ FoundGroup(const GroupProduct& p, int* shared_choices)
      : group{}, choices(shared_choices) {
    constexpr int kPerLane = kMaxSearchedChoices / kWarpSize;
    const int lane = threadIdx.x % kWarpSize;
    int experts[kPerLane];
#pragma unroll
    for (int idx = 0; idx < kPerLane; ++idx) {
      const int choice = idx * kWarpSize + lane;
      experts[idx] = choice < p.num_choices ? __ldcg(p.experts + choice) : -1;
    }
    const int own = static_cast<int>(blockIdx.x);
    group.expert = __ldcg(p.experts + own);
    bool is_first = true;
#pragma unroll
    for (int idx = 0; idx < kPerLane; ++idx) {
      for (unsigned same = __ballot_sync(0xffffffffu, experts[idx] == group.expert); same != 0;
           same &= same - 1) {
        const int choice = idx * kWarpSize + __ffs(same) - 1;
        if (threadIdx.x == 0) shared_choices[group.count] = choice;
        is_first = is_first && choice >= own;
        ++group.count;
      }
    }
    if (!is_first) group.count = 0;
  }
};

// Of sixteen weight rows of a gated product eight are gate rows and eight the up rows to them.
template <typename T, bool kGated>
__device__ __forceinline__ void FindWeights(const GroupProduct& p, int first_feature,
                                            Copies<T>& copies) {
#pragma unroll
  for (int i = 0; i < Copies<T>::kWeights; ++i) {
    const int row = copies.Row(i);
    const int feature = first_feature + (kGated ? row / 16 * 8 + row % 8 : row);
    const int weight_row = feature + (kGated && row % 16 >= 8 ? p.out_dim : 0);
    copies.sources[i] = feature < p.out_dim ? weight_row * p.in_dim + 8 * copies.vector : -1;
  }
}

template <typename T, bool kGated, typename Group>
__device__ __forceinline__ void FindRows(const GroupProduct& p, const Group& rows,
                                         Copies<T>& copies) {
#pragma unroll
  for (int i = Copies<T>::kWeights; i < Copies<T>::kAll; ++i) {
    const int idx = copies.Row(i - Copies<T>::kWeights);
    copies.sources[i] = -1;
    if (idx < rows.group.count) {
      copies.sources[i] =
          (kGated ? rows.Choice(idx) / p.top_k : rows.Position(idx)) * p.in_dim + 8 * copies.vector;
    }
  }
}

// Starts the copies [kBegin, kEnd) of a step, from `base`.
template <typename T, int kBegin, int kEnd>
__device__ __forceinline__ void StartCopies(const Copies<T>& copies, int step, const bf16* base,
                                            int in_dim, unsigned char* shared) {
#pragma unroll
  for (int i = kBegin; i < kEnd; ++i) {
    const bool valid = copies.IsInside(step, i, in_dim);
    CopyAsync(
        shared + step % T::kStages * T::kStageBytes + VectorOffset(copies.Row(i), copies.vector),
        valid ? base + copies.sources[i] + step * kStep : base, valid);
  }
}
template <typename T>
__device__ __forceinline__ void CopyWeights(const Copies<T>& copies, int step, const bf16* weight,
                                            int in_dim, unsigned char* shared) {
  StartCopies<T, 0, Copies<T>::kWeights>(copies, step, weight, in_dim, shared);
}
template <typename T>
__device__ __forceinline__ void CopyRows(const Copies<T>& copies, int step, const bf16* in,
                                         int in_dim, unsigned char* shared) {
  StartCopies<T, Copies<T>::kWeights, Copies<T>::kAll>(copies, step, in, in_dim, shared);
}

// The rows of the first steps without CopyAsync: they come last, and copies are waited for in
// their order.
template <typename T>
__device__ __forceinline__ void LoadFirstRows(const Copies<T>& copies, const bf16* in, int in_dim,
                                              unsigned char* shared) {
  constexpr int kFirst = Copies<T>::kWeights;
  uint4 first_rows[T::kStages - 1][Copies<T>::kAll - kFirst];
#pragma unroll
  for (int step = 0; step < T::kStages - 1; ++step) {
#pragma unroll
    for (int i = kFirst; i < Copies<T>::kAll; ++i) {
      uint4& value = first_rows[step][i - kFirst];
      value = make_uint4(0, 0, 0, 0);
      if (copies.IsInside(step, i, in_dim)) {
        value = *reinterpret_cast<const uint4*>(in + copies.sources[i] + step * kStep);
      }
    }
  }
#pragma unroll
  for (int step = 0; step < T::kStages - 1; ++step) {
#pragma unroll
    for (int i = kFirst; i < Copies<T>::kAll; ++i) {
      *reinterpret_cast<uint4*>(shared + step * T::kStageBytes +
                                VectorOffset(copies.Row(i), copies.vector)) =
          first_rows[step][i - kFirst];
    }
  }
}

// A warp's sums: 16 weight rows by 8 rows each, as Mma has them.
template <typename T>
using WarpSums = float[T::kWeightTiles][T::kRowTiles][4];
// Where they lie in the block's tile.
template <typename T>
struct WarpTile {
  int weight_base;  // the first weight row of the warp
  int row_base;     // its first row
  int row_tiles;    // that have rows of the group
  int g;            // the lane is 4 g + t
  int t;

  __device__ __forceinline__ explicit WarpTile(int group_rows) {
    const int lane = threadIdx.x % kWarpSize;
    const int warp = threadIdx.x / kWarpSize;
    g = lane / 4;
    t = lane % 4;
    weight_base = warp / T::kRowWarps * T::kWarpWeights;
    row_base = warp % T::kRowWarps * T::kWarpRows;
    row_tiles = min(T::kRowTiles, (group_rows - row_base + 7) / 8);
  }
};

// Adds a stage's products.
template <typename T>
__device__ __forceinline__ void MultiplyStage(uint32_t stage, const WarpTile<T>& at,
                                              WarpSums<T>& acc) {
  const int lane = threadIdx.x % kWarpSize;
  const int row = lane % 8;
  const int matrix = lane / 8;
#pragma unroll
  for (int k = 0; k < kStep / 16; ++k) {
    uint32_t b[T::kRowTiles / 2][4];  // two tiles of rows each, two vectors of k
#pragma unroll
    for (int n = 0; n < T::kRowTiles / 2; ++n) {
      LoadMatrices(
          b[n], stage + VectorOffset(T::kWeightRows + at.row_base + 16 * n + 8 * (matrix / 2) + row,
                                     2 * k + matrix % 2));
    }
#pragma unroll
    for (int m = 0; m < T::kWeightTiles; ++m) {
      uint32_t a[4];
      LoadMatrices(a, stage + VectorOffset(at.weight_base + 16 * m + 8 * (matrix % 2) + row,
                                           2 * k + matrix / 2));
#pragma unroll
      for (int n = 0; n < T::kRowTiles; ++n) {
        if (n < at.row_tiles) Mma(acc[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
}

// The results of a block: bf16 [rows, features], in shared memory so that rows are stored in whole
// vectors. A row is 16 bytes longer than its features: neighbours start in different banks.
template <typename T, bool kGated>
struct ResultTile {
  static constexpr int kFeatures = kGated ? T::kWeightRows / 2 : T::kWeightRows;
  static constexpr int kStride = kFeatures + 8;
};

template <typename T, bool kGated>
__device__ __forceinline__ void StageResults(const WarpTile<T>& at, const WarpSums<T>& acc,
                                             bf16* results) {
  const int warp = threadIdx.x / kWarpSize;
#pragma unroll
  for (int m = 0; m < T::kWeightTiles; ++m) {
    const int tile = warp / T::kRowWarps * T::kWeightTiles + m;
#pragma unroll
    for (int n = 0; n < T::kRowTiles; ++n) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        bf16* out =
            results + (at.row_base + 8 * n + 2 * at.t + column) * ResultTile<T, kGated>::kStride;
        const float low = acc[m][n][column];
        const float high = acc[m][n][2 + column];
        if constexpr (kGated) {
          out[8 * tile + at.g] = __float2bfloat16(GeluTanh(low) * high);
        } else {
          out[16 * tile + at.g] = __float2bfloat16(low);
          out[16 * tile + at.g + 8] = __float2bfloat16(high);
        }
      }
    }
  }
}

template <typename T, bool kGated, typename Group>
__device__ __forceinline__ void StoreResults(const GroupProduct& p, const Group& rows,
                                             int first_feature, const bf16* results) {
  constexpr int kVectors = ResultTile<T, kGated>::kFeatures / 8;
  for (int idx = threadIdx.x; idx < rows.group.count * kVectors; idx += T::kThreads) {
    const int member = idx / kVectors;
    const int feature = idx % kVectors * 8;
    if (first_feature + feature >= p.out_dim) continue;
    const int64_t to = kGated ? rows.Position(member) : rows.Choice(member);
    *reinterpret_cast<uint4*>(p.out + to * p.out_dim + first_feature + feature) =
        *reinterpret_cast<const uint4*>(results + member * ResultTile<T, kGated>::kStride +
                                        feature);
  }
}

template <typename T, bool kGated, typename Group>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    GroupProductKernel(const __grid_constant__ GroupProduct p) {
  // Stages of weight rows and rows behind them; at the end the results.
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ int choices[T::kRows];
  // The next kernel of a gated one is the other, which reads the groups early: it may start when
  // they are there.
  if constexpr (kGated) WaitForPreviousKernel();
  AllowNextKernel();
  const Group rows(p, choices);
  if (rows.IsEmpty()) {
    if constexpr (!kGated) WaitForPreviousKernel();
    return;
  }
  const RowGroup& group = rows.group;
  const int first_feature = blockIdx.y * ResultTile<T, kGated>::kFeatures;
  const bf16* weight = p.weight + int64_t{group.expert} * (kGated ? 2 : 1) * p.out_dim * p.in_dim;
  const int num_steps = (p.in_dim + kStep - 1) / kStep;

  Copies<T> copies;
  copies.vector = threadIdx.x % 8;
  copies.first_row = threadIdx.x / 8;
  FindWeights<T, kGated>(p, first_feature, copies);
  for (int step = 0; step < T::kStages - 1; ++step) {
    if (step < num_steps) CopyWeights<T>(copies, step, weight, p.in_dim, shared);
    CommitCopies();
  }
  if constexpr (!kGated) WaitForPreviousKernel();
  if constexpr (std::is_same_v<Group, FoundGroup>) __syncthreads();
  FindRows<T, kGated>(p, rows, copies);
  LoadFirstRows<T>(copies, p.in, p.in_dim, shared);

  WarpSums<T> acc = {};
  const WarpTile<T> at(group.count);
  for (int step = 0; step < num_steps; ++step) {
    WaitForCopies<T::kStages - 2>();
    __syncthreads();
    const int ahead = step + T::kStages - 1;
    if (ahead < num_steps) {
      CopyWeights<T>(copies, ahead, weight, p.in_dim, shared);
      CopyRows<T>(copies, ahead, p.in, p.in_dim, shared);
    }
    CommitCopies();
    if (at.row_tiles <= 0) continue;
    MultiplyStage<T>(SharedAddress(shared) + step % T::kStages * T::kStageBytes, at, acc);
  }

  WaitForCopies<0>();
  __syncthreads();
  bf16* results = reinterpret_cast<bf16*>(shared);
  StageResults<T, kGated>(at, acc, results);
  __syncthreads();
  StoreResults<T, kGated>(p, rows, first_feature, results);
}

template <typename T, typename Group = ListedGroup>
void RunTile(const LaunchContext& context, const GroupProduct& product, bool gated) {
  CHECK_LE(product.rows_per_group, T::kRows);
  const int features = gated ? T::kWeightRows / 2 : T::kWeightRows;
  const dim3 grid(static_cast<unsigned>(product.max_groups),
                  (product.out_dim + features - 1) / features);
  Launch(context, gated ? GroupProductKernel<T, true, Group> : GroupProductKernel<T, false, Group>,
         grid, dim3(T::kThreads), T::kSharedBytes, product);
}

using NarrowTile = Tile<16, 64, 4, 6, 3>;

}  // namespace

void RunFewRowsProduct(const LaunchContext& context, const GroupProduct& product, bool gated) {
  CHECK_LE(product.num_choices, kMaxSearchedChoices);
  CHECK_LE(product.num_choices, product.top_k * NarrowTile::kRows);
  RunTile<NarrowTile, FoundGroup>(context, product, gated);
}

void RunPortableProduct(const LaunchContext& context, const GroupProduct& product, bool gated) {
  if (product.rows_per_group <= 16) {
    RunTile<NarrowTile>(context, product, gated);
  } else if (product.rows_per_group <= 64) {
    RunTile<Tile<64, 128, 4, 4, 2>>(context, product, gated);
  } else {
    RunTile<Tile<128, 128, 8, 3, 2>>(context, product, gated);
  }
}

}  // namespace lapidary::cuda
