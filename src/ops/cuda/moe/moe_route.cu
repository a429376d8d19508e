// Routing in two launches (three for many rows): logits, then the choice and the rows by expert.
#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/moe/moe_groups.h"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kLogitThreads = 512;
constexpr int kLogitWarps = kLogitThreads / kWarpSize;
constexpr int kChooseThreads = 256;
constexpr int kGroupThreads = 1024;
constexpr int kMaxRowsInOneBlock = 128;  // whose choice the grouping block makes itself

// ---- logits ------------------------------------------------------------------------------------

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

// Logits of 16 kExpertTiles experts for 8 kRowTiles rows, on tensor cores, with h * router_scale
// split so that nothing of f32 is lost; the norm's factor is applied to the logit. A warp takes
// a stretch of k, kBatch chunks at a time. With kEarly the first batch of weights is on its way
// before the rows are there. The order of sums is the same in all variants.
template <int kExpertTiles, int kRowTiles, int kBatch, bool kEarly>
__global__ void __launch_bounds__(kLogitThreads, 1) LogitKernel(RouteCall call, float* logits) {
  constexpr int kExperts = 16 * kExpertTiles;
  constexpr int kRows = 8 * kRowTiles;
  extern __shared__ __align__(16) float router_scale[];  // [hidden]
  __shared__ float partials[kLogitWarps][kRows][kExperts + 1];
  __shared__ float squares[kLogitWarps][kRows];
  const int hidden = call.shape.hidden;
  const int num_experts = call.shape.num_experts;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int g = lane / 4;
  const int t = lane % 4;
  const int num_chunks = (hidden + kChunk - 1) / kChunk;
  const int warp_chunks = (num_chunks + kLogitWarps - 1) / kLogitWarps;
  const int first_chunk = warp * warp_chunks;
  const int end_chunk = min(first_chunk + warp_chunks, num_chunks);
  const int first_expert = blockIdx.x * kExperts;
  const int first_row = blockIdx.y * kRows;
  const int num_rows = min(kRows, call.shape.rows - first_row);

  uint4 low[kExpertTiles][kBatch], high[kExpertTiles][kBatch];
  const auto load_weights = [&](int chunk) {
#pragma unroll
    for (int e = 0; e < kExpertTiles; ++e) {
      const int expert = first_expert + 16 * e + g;
      const bf16* weight = static_cast<const bf16*>(call.router_weight.data) +
                           int64_t{expert} * hidden + kVector * t;
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const bool inside = chunk + j < end_chunk && (chunk + j) * kChunk + kVector * t < hidden;
        const bf16* from = weight + (chunk + j) * kChunk;
        low[e][j] = LoadWeight(from, inside && expert < num_experts);
        high[e][j] = LoadWeight(from + int64_t{8} * hidden, inside && expert + 8 < num_experts);
      }
    }
  };
  AllowNextKernel();
  if constexpr (kEarly) load_weights(first_chunk);
  for (int at = threadIdx.x * 4; at < hidden; at += kLogitThreads * 4) {
    CopyAsync(router_scale + at, call.router_scale + at);
  }
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();
  WaitForPreviousKernel();

  const float* h = call.h + int64_t{first_row} * hidden;
  float acc[kExpertTiles][kRowTiles][kParts][4] = {};  // a chain of sums for each part
  float own_squares[kRowTiles] = {};
  for (int chunk = first_chunk; chunk < end_chunk; chunk += kBatch) {
    if (!kEarly || chunk > first_chunk) load_weights(chunk);
    float values[kRowTiles][kBatch][kVector];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int at = (chunk + j) * kChunk + kVector * t;
      const bool inside = chunk + j < end_chunk && at < hidden;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        // What other columns get matters to nobody.
        const int row = min(8 * r + g, num_rows - 1);
#pragma unroll
        for (float& value : values[r][j]) value = 0.0f;
        if (inside) LoadFloats(h + row * hidden + at, values[r][j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (chunk + j >= end_chunk) break;
      const int at = (chunk + j) * kChunk + kVector * t;
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
        for (int part = 0; part < kParts; ++part) {
#pragma unroll
          for (int e = 0; e < kExpertTiles; ++e) {
            MmaChunk(acc[e][r][part], low[e][j], high[e][j], split.parts[part]);
          }
        }
      }
    }
  }

  // x, a slice by every block of these rows; what it is made of is on its way before the norm.
  const int slice = (hidden / kVector + gridDim.x - 1) / gridDim.x;
  const auto x_row = [&](int idx) { return idx / slice; };
  const auto x_at = [&](int idx) {
    return static_cast<int>(blockIdx.x * slice + idx % slice) * kVector;
  };
  float x_values[kVector], x_norm[kVector];
  const auto load_x = [&](int idx) {
    if (idx >= slice * num_rows || x_at(idx) >= hidden) return;
    LoadFloats(h + x_row(idx) * hidden + x_at(idx), x_values);
    LoadFloats(call.pre_norm + x_at(idx), x_norm);
  };
  load_x(threadIdx.x);

#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int e = 0; e < kExpertTiles; ++e) {
#pragma unroll
      for (int idx = 0; idx < 4; ++idx) {
        partials[warp][8 * r + 2 * t + idx % 2][16 * e + g + idx / 2 * 8] =
            acc[e][r][0][idx] + acc[e][r][1][idx] + acc[e][r][2][idx];
      }
    }
    own_squares[r] += __shfl_xor_sync(0xffffffffu, own_squares[r], 1);
    own_squares[r] += __shfl_xor_sync(0xffffffffu, own_squares[r], 2);
    if (t == 0) squares[warp][8 * r + g] = own_squares[r];
  }
  __syncthreads();
  const auto inverse_rms = [&](int row) {
    float sum = 0.0f;
#pragma unroll
    for (int idx = 0; idx < kLogitWarps; ++idx) sum += squares[idx][row];
    return rsqrtf(sum / static_cast<float>(hidden) + call.eps);
  };
  const float input_scale = rsqrtf(static_cast<float>(hidden));
  for (int idx = threadIdx.x; idx < num_rows * kExperts; idx += kLogitThreads) {
    const int row = idx / kExperts;
    const int expert = idx % kExperts;
    if (first_expert + expert >= num_experts) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kLogitWarps; ++w) sum += partials[w][row][expert];
    logits[int64_t{first_row + row} * num_experts + first_expert + expert] =
        sum * inverse_rms(row) * input_scale;
  }
  for (int idx = threadIdx.x; idx < slice * num_rows; idx += kLogitThreads) {
    if (idx >= kLogitThreads) load_x(idx);
    if (x_at(idx) >= hidden) continue;
    const float inverse = inverse_rms(x_row(idx));
#pragma unroll
    for (int part = 0; part < kVector; ++part) x_values[part] *= inverse * x_norm[part];
    Store8(call.x + (int64_t{first_row} + x_row(idx)) * hidden + x_at(idx), x_values);
  }
}

// ---- choice ------------------------------------------------------------------------------------

// Integers in the order of floats; 0 is below all, and NaN counts as -inf, so that a choice is
// always valid. Equal floats (both zeros) give equal integers.
__device__ __forceinline__ uint32_t OrderOf(float value) {
  if (isnan(value)) value = -INFINITY;
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FromOrder(uint32_t order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

struct ChooseParams {
  MoeShape shape;
  const float* logits;
  const float* per_expert_scale;
  int32_t* experts;
  float* weights;
};

// A warp: the top_k largest of a row's logits, ties to the lower index, as softmax weights over the
// chosen times the expert's of `scales`. Lane `rank` returns the expert of that rank. kPerLane
// times kWarpSize is no less than the number of experts.
template <int kPerLane>
__device__ __forceinline__ int ChooseExperts(const ChooseParams& params, const float* scales,
                                             int64_t row) {
  constexpr unsigned kAll = 0xffffffffu;
  const int num_experts = params.shape.num_experts;
  const int top_k = params.shape.top_k;
  const int lane = threadIdx.x % kWarpSize;
  const float* logits = params.logits + row * num_experts;
  // A lane's own, the largest first. Only neighbours change places, and only if they must: equals
  // stay in the order of their index.
  uint32_t own[kPerLane];
  int own_expert[kPerLane];
#pragma unroll
  for (int idx = 0; idx < kPerLane; ++idx) {
    own_expert[idx] = idx * kWarpSize + lane;
    own[idx] = own_expert[idx] < num_experts ? OrderOf(logits[own_expert[idx]]) : 0;
  }
#pragma unroll
  for (int pass = 0; pass < kPerLane; ++pass) {
#pragma unroll
    for (int idx = pass % 2; idx + 1 < kPerLane; idx += 2) {
      if (own[idx] >= own[idx + 1]) continue;
      const uint32_t order = own[idx];
      const int expert = own_expert[idx];
      own[idx] = own[idx + 1];
      own_expert[idx] = own_expert[idx + 1];
      own[idx + 1] = order;
      own_expert[idx + 1] = expert;
    }
  }
  uint32_t chosen_order = 0;
  int chosen_expert = 0;
  for (int rank = 0; rank < top_k; ++rank) {
    const uint32_t most = __reduce_max_sync(kAll, own[0]);
    const int expert = __reduce_min_sync(kAll, own[0] == most ? own_expert[0] : kMaxExperts);
    if (lane == rank) {
      chosen_order = most;
      chosen_expert = expert;
    }
    if (expert == own_expert[0]) {
#pragma unroll
      for (int idx = 0; idx + 1 < kPerLane; ++idx) {
        own[idx] = own[idx + 1];
        own_expert[idx] = own_expert[idx + 1];
      }
      own[kPerLane - 1] = 0;
      own_expert[kPerLane - 1] = kMaxExperts;
    }
  }
  const float logit = FromOrder(chosen_order);
  const float best = __shfl_sync(kAll, logit, 0);
  float weight = 0.0f;
  if (lane < top_k) weight = logit == best ? 1.0f : expf(logit - best);
  const float sum = WarpSum(weight);
  if (lane < top_k) {
    params.experts[row * top_k + lane] = chosen_expert;
    params.weights[row * top_k + lane] = weight / sum * scales[chosen_expert];
  }
  return chosen_expert;
}

template <int kPerLane>
__global__ void __launch_bounds__(kChooseThreads) ChooseKernel(ChooseParams params) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int row = (blockIdx.x * kChooseThreads + threadIdx.x) / kWarpSize;
  if (row < params.shape.rows) ChooseExperts<kPerLane>(params, params.per_expert_scale, row);
}

// ---- rows by expert ----------------------------------------------------------------------------

struct GroupParams {
  ChooseParams choose;  // its `experts` are what is grouped
  int rows_per_group;
  int32_t* order;
  int32_t* num_groups;
  RowGroup* groups;
};

// The sum over the warp's lanes up to and including this one.
__device__ __forceinline__ int WarpScan(int value) {
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, value, offset);
    if (threadIdx.x % kWarpSize >= offset) value += other;
  }
  return value;
}

// One block. With kPerLane, as ChooseExperts has it, it makes the choice first, of at most
// kMaxRowsInOneBlock rows; with 0 that is done.
template <int kPerLane>
__global__ void __launch_bounds__(kGroupThreads, 1) GroupKernel(GroupParams params) {
  constexpr bool kChooses = kPerLane > 0;
  __shared__ int counts[kMaxExperts];
  __shared__ int starts[kMaxExperts];        // of an expert's rows in `order`
  __shared__ int group_starts[kMaxExperts];  // of an expert's groups
  __shared__ float scales[kChooses ? kMaxExperts : 1];
  __shared__ int16_t chosen[kChooses ? kMaxRowsInOneBlock * kMaxTopK : 1];
  AllowNextKernel();
  const int num_experts = params.choose.shape.num_experts;
  const int top_k = params.choose.shape.top_k;
  const int rows = params.choose.shape.rows;
  const int lane = threadIdx.x % kWarpSize;
  for (int idx = threadIdx.x; idx < kMaxExperts; idx += kGroupThreads) {
    counts[idx] = 0;
    if (kChooses && idx < num_experts) scales[idx] = params.choose.per_expert_scale[idx];
  }
  __syncthreads();
  WaitForPreviousKernel();
  if constexpr (kChooses) {
    for (int row = threadIdx.x / kWarpSize; row < rows; row += kGroupThreads / kWarpSize) {
      const int expert = ChooseExperts<kPerLane>(params.choose, scales, row);
      if (lane >= top_k) continue;
      chosen[row * top_k + lane] = static_cast<int16_t>(expert);
      atomicAdd(&counts[expert], 1);
    }
  } else {
    for (int idx = threadIdx.x; idx < rows * top_k; idx += kGroupThreads) {
      atomicAdd(&counts[params.choose.experts[idx]], 1);
    }
  }
  __syncthreads();
  const auto groups_of = [&](int count) {
    return (count + params.rows_per_group - 1) / params.rows_per_group;
  };
  if (threadIdx.x < kWarpSize) {
    constexpr int kCounts = kMaxExperts / kWarpSize;  // of a lane
    int own_counts[kCounts];
    int sum = 0;
    int group_sum = 0;
#pragma unroll
    for (int idx = 0; idx < kCounts; ++idx) {
      own_counts[idx] = counts[lane * kCounts + idx];
      sum += own_counts[idx];
      group_sum += groups_of(own_counts[idx]);
    }
    int start = WarpScan(sum) - sum;
    int group_start = WarpScan(group_sum) - group_sum;
    if (lane == kWarpSize - 1) *params.num_groups = group_start + group_sum;
#pragma unroll
    for (int idx = 0; idx < kCounts; ++idx) {
      starts[lane * kCounts + idx] = start;
      group_starts[lane * kCounts + idx] = group_start;
      start += own_counts[idx];
      group_start += groups_of(own_counts[idx]);
    }
  }
  __syncthreads();
  for (int expert = threadIdx.x; expert < num_experts; expert += kGroupThreads) {
    const int count = counts[expert];
    RowGroup* group = params.groups + group_starts[expert];
    for (int done = 0; done < count; done += params.rows_per_group) {
      *group++ = {expert, starts[expert] + done, min(params.rows_per_group, count - done), 0};
    }
  }
  __syncthreads();
  for (int idx = threadIdx.x; idx < rows * top_k; idx += kGroupThreads) {
    const int expert = kChooses ? chosen[idx] : params.choose.experts[idx];
    params.order[atomicAdd(&starts[expert], 1)] = idx;
  }
}

GroupParams MakeGroupParams(const MoeShape& shape, const int32_t* experts,
                            const MoeScratch& scratch) {
  GroupParams params{};
  params.choose.shape = shape;
  params.choose.experts = const_cast<int32_t*>(experts);  // read, where it is not chosen here
  params.rows_per_group = RowsPerGroup(shape.rows);
  params.order = scratch.order;
  params.num_groups = scratch.num_groups;
  params.groups = scratch.groups;
  return params;
}

}  // namespace

void RunRoute(const LaunchContext& context, const RouteCall& call) {
  const MoeShape& shape = call.shape;
  CHECK_OK(MoeSupports(shape));
  CheckBf16(call.router_weight, shape.num_experts, shape.hidden);
  const MoeScratch scratch(shape, call.scratch);

  const auto run_logits = [&](auto kernel, int experts, int rows) {
    const int shared_bytes = shape.hidden * static_cast<int>(sizeof(float));
    Launch(context, kernel,
           dim3((shape.num_experts + experts - 1) / experts, (shape.rows + rows - 1) / rows),
           dim3(kLogitThreads), shared_bytes, call, scratch.logits);
  };
  if (shape.rows <= kMaxRowsInOneBlock) {
    run_logits(LogitKernel<1, 1, 6, true>, 16, 8);  // 16 * 6 chunks: all weights of 2816 at once
  } else {
    run_logits(LogitKernel<2, 2, 1, false>, 32, 16);
  }

  GroupParams params = MakeGroupParams(shape, call.experts, scratch);
  params.choose.logits = scratch.logits;
  params.choose.per_expert_scale = call.per_expert_scale;
  params.choose.weights = call.weights;
  constexpr int kFewPerLane = 4;
  constexpr int kMostPerLane = kMaxExperts / kWarpSize;
  const bool few = shape.num_experts <= kFewPerLane * kWarpSize;
  if (shape.rows <= kMaxRowsInOneBlock) {
    Launch(context, few ? GroupKernel<kFewPerLane> : GroupKernel<kMostPerLane>, dim3(1),
           dim3(kGroupThreads), 0, params);
    return;
  }
  constexpr int kRowsPerBlock = kChooseThreads / kWarpSize;
  Launch(context, few ? ChooseKernel<kFewPerLane> : ChooseKernel<kMostPerLane>,
         dim3((shape.rows + kRowsPerBlock - 1) / kRowsPerBlock), dim3(kChooseThreads), 0,
         params.choose);
  Launch(context, GroupKernel<0>, dim3(1), dim3(kGroupThreads), 0, params);
}

void RunGroupRows(const LaunchContext& context, const MoeShape& shape, const int32_t* experts,
                  void* scratch) {
  Launch(context, GroupKernel<0>, dim3(1), dim3(kGroupThreads), 0,
         MakeGroupParams(shape, experts, MoeScratch(shape, scratch)));
}

}  // namespace lapidary::cuda
