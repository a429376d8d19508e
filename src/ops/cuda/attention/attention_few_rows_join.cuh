// What an item of few rows becomes: the sums of a block's warps joined, then those of the blocks
// that share a tile.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "ops/cuda/attention/attention_few_rows.cuh"

namespace lapidary::cuda::few_rows {

// The sum of the lanes that share a row.
__device__ __forceinline__ float SumOfRow(float value) {
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) {
    value += __shfl_xor_sync(0xffffffff, value, distance);
  }
  return value;
}

template <typename P>
__device__ __forceinline__ void ScaleSums(Sums<P>& sums, float first, float second) {
#pragma unroll
  for (auto& block : sums) {
    block[0] *= first;
    block[1] *= second;
    block[2] *= first;
    block[3] *= second;
  }
}

// What sums relative to `maximum` weigh among those relative to a higher one.
__device__ __forceinline__ float WeightOf(float maximum, float higher) {
  return Exp2(maximum - (higher == -INFINITY ? 0.0f : higher));
}

// Four columns of a row of the item, where its output lies.
template <typename P>
__device__ __forceinline__ void StoreRow(const AttentionParams& params, const FewRowsTask& task,
                                         int row, int column, const float4& total, float inverse) {
  using Form = typename P::Form;
  auto* const out = reinterpret_cast<__nv_bfloat162*>(
      params.out + task.work.HeadRow(params, row) * Form::kValueLen + Form::DimOf(column));
  out[0] = __floats2bfloat162_rn(total.x * inverse, total.y * inverse);
  out[1] = __floats2bfloat162_rn(total.z * inverse, total.w * inverse);
}

// The sums of a row relative to one maximum.
struct JoinedRow {
  float maximum = -INFINITY;
  float sum = 0.0f;  // of P
};

// Two neighbouring rows of a part, as its warps have left their maxima and sums of P.
template <typename P>
__device__ __forceinline__ void JoinRows(const float2* maxima, const float2* sums_of_weights,
                                         const Shares<P>& shares, int part, int pair,
                                         JoinedRow (&joined)[2]) {
  float2 own[kComputingWarps];
  float2 weights[kComputingWarps];
#pragma unroll
  for (int warp = 0; warp < kComputingWarps; ++warp) {
    const bool counts = warp < shares.warps() && shares.PartOf(warp) == part;
    own[warp] = counts ? maxima[warp * (kWarpRows / 2) + pair] : make_float2(-INFINITY, -INFINITY);
    weights[warp] =
        counts ? sums_of_weights[warp * (kWarpRows / 2) + pair] : make_float2(0.0f, 0.0f);
    joined[0].maximum = fmaxf(joined[0].maximum, own[warp].x);
    joined[1].maximum = fmaxf(joined[1].maximum, own[warp].y);
  }
#pragma unroll
  for (int warp = 0; warp < kComputingWarps; ++warp) {
    joined[0].sum =
        __fmaf_rn(weights[warp].x, WeightOf(own[warp].x, joined[0].maximum), joined[0].sum);
    joined[1].sum =
        __fmaf_rn(weights[warp].y, WeightOf(own[warp].y, joined[1].maximum), joined[1].sum);
  }
}

// A lane's sums of the columns from kFirst on, to where the warps' are added.
template <typename P, int kFirst>
__device__ __forceinline__ void StoreColumns(const Sums<P>& sums, float* join) {
#pragma unroll
  for (int block = 0; block < P::kJoinColumns / 16; ++block) {
    float* const at = join + block * 16;
    const float(&own)[4] = sums[kFirst / 16 + block];
    at[0] = own[0];
    at[P::kJoinStride] = own[1];
    at[8] = own[2];
    at[P::kJoinStride + 8] = own[3];
  }
}

// Adds what the warps have stored of some columns: four to a lane, a row to a warp.
template <typename P>
__device__ __forceinline__ void AddColumns(const AttentionParams& params, const FewRowsTask& task,
                                           const Shares<P>& shares, const float* join,
                                           const float* totals, int first) {
  using Form = typename P::Form;
  constexpr int kPieces = P::kJoinColumns / 128;  // of a row
  const AttentionItem& item = task.work.item;
#pragma unroll 1
  for (int piece = threadIdx.x / 32; piece < task.num_rows * kPieces; piece += kComputingWarps) {
    const int row = piece / kPieces;
    const int column = piece % kPieces * 128 + static_cast<int>(threadIdx.x % 32) * 4;
    const float* const from =
        join + row / kWarpRows * P::kJoinFloats + row % kWarpRows * P::kJoinStride + column;
    const int stride = shares.parts() * P::kJoinFloats;
    // All loads first; of groups that do not exist, the last one's again.
    float4 own[kComputingWarps];
#pragma unroll
    for (int group = 0; group < kComputingWarps; ++group) {
      own[group] =
          *reinterpret_cast<const float4*>(from + min(group, shares.groups() - 1) * stride);
    }
    float4 total = own[0];
#pragma unroll
    for (int group = 1; group < kComputingWarps; ++group) {
      const float counts = group < shares.groups() ? 1.0f : 0.0f;
      total.x = __fmaf_rn(own[group].x, counts, total.x);
      total.y = __fmaf_rn(own[group].y, counts, total.y);
      total.z = __fmaf_rn(own[group].z, counts, total.z);
      total.w = __fmaf_rn(own[group].w, counts, total.w);
    }
    if (item.num_splits == 1) {
      StoreRow<P>(params, task, row, first + column, total, __frcp_rn(totals[kFewRows + row]));
      continue;
    }
    const int row_tiles = (task.num_rows + kAttentionPartialRows - 1) / kAttentionPartialRows;
    float* const slot = params.partials + int64_t{item.first_partial + item.split * row_tiles +
                                                  row / kAttentionPartialRows} *
                                              Form::kSlotFloats;
    const int at = row % kAttentionPartialRows;
    *reinterpret_cast<float4*>(slot + at * Form::kValueLen + first + column) = total;
    if (first + column == 0) {
      float* const tail = slot + kAttentionPartialRows * Form::kValueLen + at;
      tail[0] = totals[row];
      tail[kAttentionPartialRows] = totals[kFewRows + row];
    }
  }
}

// What the warps of an item have summed becomes rows or partial results.
template <typename P>
__device__ __forceinline__ void JoinWarps(const AttentionParams& params, std::byte* memory,
                                          const FewRowsTask& task, SoftmaxRow (&rows)[2],
                                          Sums<P>& sums) {
  using Form = typename P::Form;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const Shares<P> shares(task.num_rows);
  float2* const maxima = reinterpret_cast<float2*>(memory + P::kMaximaAt);
  float2* const sums_of_weights = maxima + kComputingWarps * kWarpRows / 2;
  float* const totals = reinterpret_cast<float*>(memory + P::kTotalsAt);
  float* const join = reinterpret_cast<float*>(memory + P::kJoinAt);
  const float2 sum = make_float2(SumOfRow(rows[0].sum), SumOfRow(rows[1].sum));
  if (lane < 4) {
    maxima[warp * 4 + lane] = make_float2(rows[0].maximum, rows[1].maximum);
    sums_of_weights[warp * 4 + lane] = sum;
  }
  SyncComputing();
  {
    const int part = shares.PartOf(warp);
    JoinedRow joined[2];
    JoinRows<P>(maxima, sums_of_weights, shares, part, lane % 4, joined);
    if (shares.GroupOf(warp) == 0 && lane < 4) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = part * kWarpRows + lane * 2 + half;
        totals[row] = joined[half].maximum;
        totals[kFewRows + row] = joined[half].sum;
      }
    }
    ScaleSums<P>(sums, WeightOf(rows[0].maximum, joined[0].maximum),
                 WeightOf(rows[1].maximum, joined[1].maximum));
  }
  float* const own = join + warp * P::kJoinFloats + lane % 4 * 2 * P::kJoinStride + lane / 4;
#pragma unroll 1
  for (int first = 0; first < Form::kValueLen; first += P::kJoinColumns) {
    // Registers have no index: every range of columns is code of its own.
    if (first == 0) {
      StoreColumns<P, 0>(sums, own);
    } else if (first == P::kJoinColumns) {
      StoreColumns<P, P::kJoinColumns % Form::kValueLen>(sums, own);
    } else if (first == 2 * P::kJoinColumns) {
      StoreColumns<P, 2 * P::kJoinColumns % Form::kValueLen>(sums, own);
    } else {
      StoreColumns<P, 3 * P::kJoinColumns % Form::kValueLen>(sums, own);
    }
    SyncComputing();
    AddColumns<P>(params, task, shares, join, totals, first);
    SyncComputing();
  }
}

// Some splits of a tile, `stride` apart: joined in their order, they become rows if they are all
// (`in_place` is false), or the partial result of the first.
struct FewSplits {
  int first;
  int count;
  int stride;
  bool in_place;
};

// A warp has a row. What it reads of eight splits (of 16 at 256 dims) is on its way at once: in a
// busy memory a round trip takes longer than all else here.
template <typename P>
__device__ __forceinline__ void MergeSplitRows(const AttentionParams& params,
                                               const FewRowsTask& task, const FewSplits& splits) {
  using Form = typename P::Form;
  constexpr int kQuads = Form::kValueLen / 128;  // groups of four columns per lane
  constexpr int kAtOnce = 32 / kQuads;
  const int lane = threadIdx.x % 32;
  const int row_tiles = (task.num_rows + kAttentionPartialRows - 1) / kAttentionPartialRows;
  const int64_t stride = int64_t{splits.stride} * row_tiles * Form::kSlotFloats;
#pragma unroll 1
  for (int row = threadIdx.x / 32; row < task.num_rows; row += kComputingWarps) {
    float* const slot =
        params.partials + int64_t{task.work.item.first_partial + splits.first * row_tiles +
                                  row / kAttentionPartialRows} *
                              Form::kSlotFloats;
    float* const sums = slot + row % kAttentionPartialRows * Form::kValueLen + lane * 4;
    float* const tail =
        slot + kAttentionPartialRows * Form::kValueLen + row % kAttentionPartialRows;
    JoinedRow joined;
    float4 total[kQuads];
#pragma unroll
    for (float4& quad : total) quad = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int first = 0; first < splits.count; first += kAtOnce) {
      float maxima[kAtOnce];
      float weights[kAtOnce];
      float4 values[kAtOnce][kQuads];
#pragma unroll
      for (int idx = 0; idx < kAtOnce; ++idx) {
        // Of splits that do not exist, the last one again, with no weight.
        const int64_t at = min(first + idx, splits.count - 1) * stride;
        maxima[idx] = first + idx < splits.count ? __ldcg(tail + at) : -INFINITY;
        weights[idx] = __ldcg(tail + at + kAttentionPartialRows);
#pragma unroll
        for (int quad = 0; quad < kQuads; ++quad) {
          values[idx][quad] = __ldcg(reinterpret_cast<const float4*>(sums + at + quad * 128));
        }
      }
      const float before = joined.maximum;
#pragma unroll
      for (const float maximum : maxima) joined.maximum = fmaxf(joined.maximum, maximum);
      const float shrink = WeightOf(before, joined.maximum);
      joined.sum *= shrink;
#pragma unroll
      for (float4& quad : total) {
        quad = make_float4(quad.x * shrink, quad.y * shrink, quad.z * shrink, quad.w * shrink);
      }
#pragma unroll
      for (int idx = 0; idx < kAtOnce; ++idx) {
        const float weight = WeightOf(maxima[idx], joined.maximum);
        joined.sum = __fmaf_rn(weights[idx], weight, joined.sum);
#pragma unroll
        for (int quad = 0; quad < kQuads; ++quad) {
          total[quad].x = __fmaf_rn(values[idx][quad].x, weight, total[quad].x);
          total[quad].y = __fmaf_rn(values[idx][quad].y, weight, total[quad].y);
          total[quad].z = __fmaf_rn(values[idx][quad].z, weight, total[quad].z);
          total[quad].w = __fmaf_rn(values[idx][quad].w, weight, total[quad].w);
        }
      }
    }
    if (!splits.in_place) {
      const float inverse = __frcp_rn(joined.sum);
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        StoreRow<P>(params, task, row, quad * 128 + lane * 4, total[quad], inverse);
      }
      continue;
    }
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      *reinterpret_cast<float4*>(sums + quad * 128) = total[quad];
    }
    __syncwarp();  // All lanes have read the tail.
    if (lane == 0) {
      tail[0] = joined.maximum;
      tail[kAttentionPartialRows] = joined.sum;
    }
  }
}

// Whether this block is the last of so many to arrive at a counter. Thread 0 publishes what the
// block's threads have written before a barrier, and sees what those of the other blocks have.
__device__ __forceinline__ bool IsLastAt(int32_t* counter, int arrivals) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before == arrivals - 1;
}

// Many partial results are joined in two steps, so that several blocks share the reading:
// neighbours of a group, then what these have become.
inline constexpr int kSplitsOfGroup = 8;

// Whoever is the last of a tile's splits, or of a group of them, joins these.
template <typename P>
__device__ __forceinline__ void JoinSplits(const AttentionParams& params, FewRowsTask& task) {
  constexpr int kMaxValues = 2 * kSplitsOfGroup * 8 * 512;  // to be joined in one step
  const AttentionItem& item = task.work.item;
  const int num_splits = item.num_splits;
  const int num_groups = (num_splits + kSplitsOfGroup - 1) / kSplitsOfGroup;
  int32_t* counter = params.counters + item.first_partial;
  FewSplits splits = {.first = 0, .count = num_splits, .stride = 1, .in_place = false};
  if (num_splits * task.num_rows * P::Form::kValueLen > kMaxValues) {
    const int group = item.split / kSplitsOfGroup;
    counter += 1 + group;
    splits.first = group * kSplitsOfGroup;
    splits.count = min(kSplitsOfGroup, num_splits - splits.first);
    splits.in_place = true;
  }
#pragma unroll 1
  while (true) {
    SyncComputing();
    if (threadIdx.x == 0) task.is_last_split = IsLastAt(counter, splits.count);
    SyncComputing();
    if (task.is_last_split == 0) return;
    MergeSplitRows<P>(params, task, splits);
    if (threadIdx.x == 0) *counter = 0;
    if (!splits.in_place) return;
    counter = params.counters + item.first_partial;
    splits = {.first = 0, .count = num_groups, .stride = kSplitsOfGroup, .in_place = false};
  }
}

}  // namespace lapidary::cuda::few_rows
