// The router's logits, and x: the same rows under the experts' norm.
#include "ops/cuda/moe/moe_groups.h"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kLogitThreads = 512;
constexpr int kLogitWarps = kLogitThreads / kWarpSize;
constexpr int kFewRows = 128;  // up to here it counts how early the weights come

constexpr int kChunk = 32;  // values of k that a MmaChunk takes
constexpr int kVector = 8;  // of them, a lane's

// Eight f32 values as sums of three bf16 values: 24 bits, as exact as f32 itself.
constexpr int kParts = 3;
struct SplitVector {
  uint4 parts[kParts];  // from the smallest to the largest

  __device__ __forceinline__ explicit SplitVector(const float (&values)[kVector]) {
    float rest[kVector];
#pragma unroll
    for (int idx = 0; idx < kVector; ++idx) rest[idx] = values[idx];
#pragma unroll
    for (int part = kParts - 1; part >= 0; --part) {
      const Bf16x8 packed = Pack(rest);
      parts[part] = reinterpret_cast<const uint4&>(packed);
      float rounded[kVector];
      Unpack(packed, rounded);
#pragma unroll
      for (int idx = 0; idx < kVector; ++idx) rest[idx] -= rounded[idx];
    }
  }
};

__device__ __forceinline__ void LoadFloats(const float* from, float (&values)[kVector]) {
  *reinterpret_cast<float4*>(values) = *reinterpret_cast<const float4*>(from);
  *reinterpret_cast<float4*>(values + 4) = *reinterpret_cast<const float4*>(from + 4);
}

// What a block has of the logits, and a warp of the sums: all experts and rows of the block, a
// stretch of k.
struct LogitPart {
  int first_expert;
  int first_row;
  int num_rows;
  int first_chunk;  // of 32 values of k
  int end_chunk;
  int warp;
  int g;  // the lane is 4 g + t (mma.cuh)
  int t;
};

template <int kExperts, int kRows>
__device__ __forceinline__ LogitPart PartOfWarp(const MoeShape& shape) {
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int num_chunks = (shape.hidden + kChunk - 1) / kChunk;
  const int warp_chunks = (num_chunks + kLogitWarps - 1) / kLogitWarps;
  const int first_chunk = warp * warp_chunks;
  const int first_row = blockIdx.y * kRows;
  return {.first_expert = static_cast<int>(blockIdx.x) * kExperts,
          .first_row = first_row,
          .num_rows = min(kRows, shape.rows - first_row),
          .first_chunk = first_chunk,
          .end_chunk = min(first_chunk + warp_chunks, num_chunks),
          .warp = warp,
          .g = lane / 4,
          .t = lane % 4};
}

// The lane's weights of kBatch chunks from `chunk` on: experts g and g + 8 of each 16.
template <int kExpertTiles, int kBatch>
__device__ __forceinline__ void LoadWeights(const RouteCall& call, const LogitPart& part, int chunk,
                                            uint4 (&low)[kExpertTiles][kBatch],
                                            uint4 (&high)[kExpertTiles][kBatch]) {
  const int hidden = call.shape.hidden;
  const int num_experts = call.shape.num_experts;
#pragma unroll
  for (int e = 0; e < kExpertTiles; ++e) {
    const int expert = part.first_expert + 16 * e + part.g;
    const bf16* weight = static_cast<const bf16*>(call.router_weight.data) +
                         int64_t{expert} * hidden + kVector * part.t;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const bool inside =
          chunk + j < part.end_chunk && (chunk + j) * kChunk + kVector * part.t < hidden;
      const bf16* from = weight + (chunk + j) * kChunk;
      low[e][j] = LoadWeight(from, inside && expert < num_experts);
      high[e][j] = LoadWeight(from + int64_t{8} * hidden, inside && expert + 8 < num_experts);
    }
  }
}

// Values of the same chunks of row g of each 8. `h`: the block's rows.
template <int kRowTiles, int kBatch>
__device__ __forceinline__ void LoadRows(const float* h, int hidden, const LogitPart& part,
                                         int chunk, float (&values)[kRowTiles][kBatch][kVector]) {
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    const int at = (chunk + j) * kChunk + kVector * part.t;
    const bool inside = chunk + j < part.end_chunk && at < hidden;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      // What other columns get matters to nobody.
      const int row = min(8 * r + part.g, part.num_rows - 1);
#pragma unroll
      for (float& value : values[r][j]) value = 0.0f;
      if (inside) LoadFloats(h + row * hidden + at, values[r][j]);
    }
  }
}

// Adds a batch of chunks to the logits, a chain of sums for each part of a value, and to the sums
// of squares. `values` are scaled in place.
template <int kExpertTiles, int kRowTiles, int kBatch>
__device__ __forceinline__ void AddBatch(const uint4 (&low)[kExpertTiles][kBatch],
                                         const uint4 (&high)[kExpertTiles][kBatch],
                                         const float* router_scale, int hidden,
                                         const LogitPart& part, int chunk,
                                         float (&values)[kRowTiles][kBatch][kVector],
                                         float (&acc)[kExpertTiles][kRowTiles][kParts][4],
                                         float (&own_squares)[kRowTiles]) {
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    if (chunk + j >= part.end_chunk) break;
    const int at = (chunk + j) * kChunk + kVector * part.t;
    float scale[kVector] = {};
    if (at < hidden) LoadFloats(router_scale + at, scale);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int idx = 0; idx < kVector; ++idx) {
        float& value = values[r][j][idx];
        own_squares[r] = __fmaf_rn(value, value, own_squares[r]);
        value *= scale[idx];
      }
      const SplitVector split(values[r][j]);
#pragma unroll
      for (int of_value = 0; of_value < kParts; ++of_value) {
#pragma unroll
        for (int e = 0; e < kExpertTiles; ++e) {
          MmaChunk(acc[e][r][of_value], low[e][j], high[e][j], split.parts[of_value]);
        }
      }
    }
  }
}

// A block's sums by warp, in shared memory.
template <int kExperts, int kRows>
struct LogitSums {
  float partials[kLogitWarps][kRows][kExperts + 1];
  float squares[kLogitWarps][kRows];

  __device__ __forceinline__ float InverseRms(int row, int hidden, float eps) const {
    float sum = 0.0f;
#pragma unroll
    for (int idx = 0; idx < kLogitWarps; ++idx) sum += squares[idx][row];
    return rsqrtf(sum / static_cast<float>(hidden) + eps);
  }
};

template <int kExpertTiles, int kRowTiles>
__device__ __forceinline__ void StoreSums(const LogitPart& part,
                                          const float (&acc)[kExpertTiles][kRowTiles][kParts][4],
                                          float (&own_squares)[kRowTiles],
                                          LogitSums<16 * kExpertTiles, 8 * kRowTiles>& sums) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int e = 0; e < kExpertTiles; ++e) {
#pragma unroll
      for (int idx = 0; idx < 4; ++idx) {
        sums.partials[part.warp][8 * r + 2 * part.t + idx % 2][16 * e + part.g + idx / 2 * 8] =
            acc[e][r][0][idx] + acc[e][r][1][idx] + acc[e][r][2][idx];
      }
    }
    own_squares[r] += __shfl_xor_sync(0xffffffffu, own_squares[r], 1);
    own_squares[r] += __shfl_xor_sync(0xffffffffu, own_squares[r], 2);
    if (part.t == 0) sums.squares[part.warp][8 * r + part.g] = own_squares[r];
  }
}

// Logits from their sums; the norm's factor is applied here.
template <int kExperts, int kRows>
__device__ __forceinline__ void StoreLogits(const RouteCall& call, const LogitPart& part,
                                            const LogitSums<kExperts, kRows>& sums, float* logits) {
  const int hidden = call.shape.hidden;
  const int num_experts = call.shape.num_experts;
  const float input_scale = rsqrtf(static_cast<float>(hidden));
  for (int idx = threadIdx.x; idx < part.num_rows * kExperts; idx += kLogitThreads) {
    const int row = idx / kExperts;
    const int expert = idx % kExperts;
    if (part.first_expert + expert >= num_experts) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kLogitWarps; ++w) sum += sums.partials[w][row][expert];
    logits[int64_t{part.first_row + row} * num_experts + part.first_expert + expert] =
        sum * sums.InverseRms(row, hidden, call.eps) * input_scale;
  }
}

// A slice of x for every block of the same rows; vector `idx` of the slice is of row Row(idx), from
// value At(idx) on.
struct XSlice {
  int vectors;  // of a row
  __device__ __forceinline__ explicit XSlice(int hidden)
      : vectors((hidden / kVector + gridDim.x - 1) / gridDim.x) {}
  __device__ __forceinline__ int Row(int idx) const { return idx / vectors; }
  __device__ __forceinline__ int At(int idx) const {
    return static_cast<int>(blockIdx.x * vectors + idx % vectors) * kVector;
  }
};

// What a vector of x is made of. `h`: the block's rows.
__device__ __forceinline__ void LoadX(const RouteCall& call, const float* h, int num_rows,
                                      const XSlice& slice, int idx, float (&values)[kVector],
                                      float (&norm)[kVector]) {
  const int hidden = call.shape.hidden;
  if (idx >= slice.vectors * num_rows || slice.At(idx) >= hidden) return;
  LoadFloats(h + slice.Row(idx) * hidden + slice.At(idx), values);
  LoadFloats(call.pre_norm + slice.At(idx), norm);
}

// The slice of x; `values` and `norm` hold what the thread's first vector is made of.
template <int kExperts, int kRows>
__device__ __forceinline__ void StoreX(const RouteCall& call, const float* h, const LogitPart& part,
                                       const XSlice& slice, const LogitSums<kExperts, kRows>& sums,
                                       float (&values)[kVector], float (&norm)[kVector]) {
  const int hidden = call.shape.hidden;
  for (int idx = threadIdx.x; idx < slice.vectors * part.num_rows; idx += kLogitThreads) {
    if (idx >= kLogitThreads) LoadX(call, h, part.num_rows, slice, idx, values, norm);
    if (slice.At(idx) >= hidden) continue;
    const float inverse = sums.InverseRms(slice.Row(idx), hidden, call.eps);
#pragma unroll
    for (int of = 0; of < kVector; ++of) values[of] *= inverse * norm[of];
    Store8(call.x + (int64_t{part.first_row} + slice.Row(idx)) * hidden + slice.At(idx), values);
  }
}

// Logits of 16 kExpertTiles experts for 8 kRowTiles rows, on tensor cores, with h * router_scale
// split so that nothing of f32 is lost; the norm's factor is applied to the logit. A warp takes
// a stretch of k, kBatch chunks at a time. With kEarly the first batch of weights is on its way
// before the rows are there. The order of sums is the same in all variants.
template <int kExpertTiles, int kRowTiles, int kBatch, bool kEarly>
__global__ void __launch_bounds__(kLogitThreads, 1)
    LogitKernel(RouteCall call, float* logits, int32_t* counts) {
  constexpr int kExperts = 16 * kExpertTiles;
  constexpr int kRows = 8 * kRowTiles;
  extern __shared__ __align__(16) float router_scale[];  // [hidden]
  __shared__ LogitSums<kExperts, kRows> sums;
  const int hidden = call.shape.hidden;
  const LogitPart part = PartOfWarp<kExperts, kRows>(call.shape);

  uint4 low[kExpertTiles][kBatch], high[kExpertTiles][kBatch];
  AllowNextKernel();
  if constexpr (kEarly) LoadWeights(call, part, part.first_chunk, low, high);
  for (int at = threadIdx.x * 4; at < hidden; at += kLogitThreads * 4) {
    CopyAsync(router_scale + at, call.router_scale + at);
  }
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();
  WaitForPreviousKernel();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x < call.shape.num_experts) {
    counts[threadIdx.x] = 0;
  }

  const float* h = call.h + int64_t{part.first_row} * hidden;
  float acc[kExpertTiles][kRowTiles][kParts][4] = {};
  float own_squares[kRowTiles] = {};
  for (int chunk = part.first_chunk; chunk < part.end_chunk; chunk += kBatch) {
    if (!kEarly || chunk > part.first_chunk) LoadWeights(call, part, chunk, low, high);
    float values[kRowTiles][kBatch][kVector];
    LoadRows(h, hidden, part, chunk, values);
    AddBatch(low, high, router_scale, hidden, part, chunk, values, acc, own_squares);
  }

  // What x is made of is on its way before the norm is known.
  const XSlice slice(hidden);
  float x_values[kVector], x_norm[kVector];
  LoadX(call, h, part.num_rows, slice, threadIdx.x, x_values, x_norm);
  StoreSums(part, acc, own_squares, sums);
  __syncthreads();
  StoreLogits(call, part, sums, logits);
  StoreX(call, h, part, slice, sums, x_values, x_norm);
}

}  // namespace

void RunLogits(const LaunchContext& context, const RouteCall& call, const MoeScratch& scratch) {
  const MoeShape& shape = call.shape;
  const auto run = [&](auto kernel, int experts, int rows) {
    const int shared_bytes = shape.hidden * static_cast<int>(sizeof(float));
    Launch(context, kernel,
           dim3((shape.num_experts + experts - 1) / experts, (shape.rows + rows - 1) / rows),
           dim3(kLogitThreads), shared_bytes, call, scratch.logits, scratch.counts);
  };
  if (shape.rows <= kFewRows) {
    run(LogitKernel<1, 1, 6, true>, 16, 8);  // 16 * 6 chunks: all weights of 2816 at once
  } else {
    run(LogitKernel<2, 2, 1, false>, 32, 16);
  }
}

}  // namespace lapidary::cuda
