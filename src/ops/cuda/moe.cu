// Experts in three launches after routing: assignments are grouped by expert, every block runs one
// expert's tile of features over all rows that chose it, and rows are summed in rank order.
#include "base/check.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/moe.h"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kRouteThreads = 256;
constexpr int kRouteWarps = kRouteThreads / kWarpSize;
constexpr int kGroupThreads = 1024;
constexpr int kExpertThreads = 128;
constexpr int kExpertWarps = kExpertThreads / kWarpSize;
constexpr int kRowTiles = 4;  // of eight rows: what a block takes at a time
constexpr int kCombineThreads = 256;

int64_t Align16(int64_t bytes) { return (bytes + 15) / 16 * 16; }

// Where RunExperts keeps what; all offsets in bytes.
struct ExpertLayout {
  int64_t order;    // int32 [assignments] row * top_k + rank, grouped by expert
  int64_t begin;    // int32 [experts + 1] into order
  int64_t act;      // bf16 [assignments, width], in grouped order
  int64_t outputs;  // bf16 [assignments, hidden], by row and rank
  int64_t total;

  ExpertLayout(int64_t rows, int hidden, int width, int num_experts, int top_k) {
    const int64_t assignments = rows * top_k;
    order = 0;
    begin = Align16(assignments * static_cast<int64_t>(sizeof(int32_t)));
    act = begin + Align16((num_experts + 1) * static_cast<int64_t>(sizeof(int32_t)));
    outputs = act + Align16(assignments * width * static_cast<int64_t>(sizeof(bf16)));
    total = outputs + Align16(assignments * hidden * static_cast<int64_t>(sizeof(bf16)));
  }
};

// ---- routing -----------------------------------------------------------------------------------

// Warp: the top_k largest of `logits` by value, ties to the lower index, as softmax weights over
// the chosen times the expert's scale. NaN counts as the smallest, so a choice is always valid.
__device__ void ChooseExperts(const RouteCall& call, const float* logits, int64_t row) {
  constexpr int kPerLane = kMaxExperts / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  float own[kPerLane];
#pragma unroll
  for (int idx = 0; idx < kPerLane; ++idx) {
    const int expert = idx * kWarpSize + lane;
    own[idx] = expert < call.num_experts ? logits[expert] : -INFINITY;
    if (isnan(own[idx])) own[idx] = -INFINITY;
  }
  uint32_t taken = 0;  // bit idx: own[idx] is chosen
  float best_logit = 0.0f;
  float sum = 0.0f;
  float chosen_weight = 0.0f;  // of rank `lane`
  int chosen_expert = 0;
  for (int rank = 0; rank < call.top_k; ++rank) {
    float best = -INFINITY;
    int expert = kMaxExperts;
#pragma unroll
    for (int idx = 0; idx < kPerLane; ++idx) {
      const int candidate = idx * kWarpSize + lane;
      if ((taken >> idx & 1) != 0 || candidate >= call.num_experts) continue;
      if (own[idx] > best || expert == kMaxExperts) {
        best = own[idx];
        expert = candidate;
      }
    }
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, offset);
      const int other_expert = __shfl_xor_sync(0xffffffffu, expert, offset);
      if (other_expert < kMaxExperts &&
          (expert == kMaxExperts || other > best || (other == best && other_expert < expert))) {
        best = other;
        expert = other_expert;
      }
    }
    if (rank == 0) best_logit = best;
    if (expert % kWarpSize == lane) taken |= 1u << (expert / kWarpSize);
    const float weight = best == best_logit ? 1.0f : expf(best - best_logit);
    sum += weight;
    if (lane == rank) {
      chosen_weight = weight;
      chosen_expert = expert;
    }
  }
  if (lane < call.top_k) {
    call.experts[row * call.top_k + lane] = chosen_expert;
    call.weights[row * call.top_k + lane] =
        chosen_weight / sum * call.per_expert_scale[chosen_expert];
  }
}

// kRows rows a block, so that many rows share each read of the router's weights.
template <int kRows>
__global__ void __launch_bounds__(kRouteThreads) RouteKernel(RouteCall call) {
  extern __shared__ float shared[];  // [kRows, hidden] router inputs, then [kRows, experts] logits
  __shared__ float scratch[kRouteWarps];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t first_row = int64_t{blockIdx.x} * kRows;
  const int num_rows = static_cast<int>(min(int64_t{kRows}, call.rows - first_row));
  float* logits = shared + kRows * call.hidden;
  const float input_scale = rsqrtf(static_cast<float>(call.hidden));
  for (int idx = 0; idx < num_rows; ++idx) {
    const float* h = call.h + (first_row + idx) * call.hidden;
    float squares = 0.0f;
    for (int at = threadIdx.x; at < call.hidden; at += kRouteThreads) squares += h[at] * h[at];
    const float inverse = rsqrtf(
        BlockSum<kRouteThreads>(squares, scratch) / static_cast<float>(call.hidden) + call.eps);
    for (int at = threadIdx.x; at < call.hidden; at += kRouteThreads) {
      const float normed = h[at] * inverse;
      shared[idx * call.hidden + at] = normed * call.router_scale[at] * input_scale;
      call.x[(first_row + idx) * call.hidden + at] = __float2bfloat16(normed * call.pre_norm[at]);
    }
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarpSize;
  for (int expert = threadIdx.x / kWarpSize; expert < call.num_experts; expert += kRouteWarps) {
    float sums[kRows] = {};
    for (int at = lane * 8; at < call.hidden; at += kWarpSize * 8) {
      float weight[8];
      Load8(call.router_weight + int64_t{expert} * call.hidden + at, weight);
#pragma unroll
      for (int idx = 0; idx < kRows; ++idx) {
        if (idx >= num_rows) break;
#pragma unroll
        for (int part = 0; part < 8; ++part) {
          sums[idx] += weight[part] * shared[idx * call.hidden + at + part];
        }
      }
    }
#pragma unroll
    for (int idx = 0; idx < kRows; ++idx) {
      const float sum = WarpSum(sums[idx]);
      if (lane == 0) logits[idx * call.num_experts + expert] = sum;
    }
  }
  __syncthreads();
  const int warp = threadIdx.x / kWarpSize;
  if (warp < num_rows) ChooseExperts(call, logits + warp * call.num_experts, first_row + warp);
}

// ---- experts -----------------------------------------------------------------------------------

// One block: counts, begins, and the assignments in groups. The order within a group is left to
// chance; no result depends on it.
__global__ void __launch_bounds__(kGroupThreads)
    GroupKernel(const int32_t* experts, int assignments, int num_experts, int32_t* order,
                int32_t* begin) {
  __shared__ int counts[kMaxExperts];
  __shared__ int starts[kMaxExperts + 1];
  AllowNextKernel();
  WaitForPreviousKernel();
  for (int idx = threadIdx.x; idx < num_experts; idx += kGroupThreads) counts[idx] = 0;
  __syncthreads();
  for (int idx = threadIdx.x; idx < assignments; idx += kGroupThreads) {
    atomicAdd(&counts[experts[idx]], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int sum = 0;
    for (int expert = 0; expert < num_experts; ++expert) {
      starts[expert] = sum;
      sum += counts[expert];
    }
    starts[num_experts] = sum;
  }
  __syncthreads();
  for (int idx = threadIdx.x; idx <= num_experts; idx += kGroupThreads) begin[idx] = starts[idx];
  for (int idx = threadIdx.x; idx < num_experts; idx += kGroupThreads) counts[idx] = starts[idx];
  __syncthreads();
  for (int idx = threadIdx.x; idx < assignments; idx += kGroupThreads) {
    order[atomicAdd(&counts[experts[idx]], 1)] = idx;
  }
}

// A warp's sixteen features times up to kRowTiles * 8 rows of one group. `row_of(i)` gives the
// input row of the group's i-th member. The order of k is the same for every number of rows.
template <typename RowOf>
__device__ void TileProduct(const bf16* low_row, const bf16* high_row, bool low_valid,
                            bool high_valid, const bf16* x, int in_dim, int count,
                            const RowOf& row_of, float (&acc)[kRowTiles][4]) {
  const int lane = threadIdx.x % kWarpSize;
  const int member = lane / 4;
  const int part = lane % 4 * 8;
  const bf16* rows[kRowTiles];
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    const int idx = tile * 8 + member;
    rows[tile] = idx < count ? x + static_cast<int64_t>(row_of(idx)) * in_dim : nullptr;
#pragma unroll
    for (float& value : acc[tile]) value = 0.0f;
  }
#pragma unroll 4
  for (int at = part; at - part < in_dim; at += 32) {
    const bool inside = at < in_dim;
    const uint4 low = LoadWeight(low_row + at, inside && low_valid);
    const uint4 high = LoadWeight(high_row + at, inside && high_valid);
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      if (tile * 8 >= count) break;
      uint4 b = make_uint4(0, 0, 0, 0);
      if (inside && rows[tile] != nullptr) b = *reinterpret_cast<const uint4*>(rows[tile] + at);
      MmaChunk(acc[tile], low, high, b);
    }
  }
}

struct ExpertKernelParams {
  ExpertsCall call;
  const int32_t* order;
  const int32_t* begin;
  bf16* act;
  bf16* outputs;
};

// act = gelu(gate x) * (up x). A warp takes eight features: gate rows above, up rows below.
__global__ void __launch_bounds__(kExpertThreads) ExpertGateUpKernel(ExpertKernelParams params) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const ExpertsCall& call = params.call;
  const int expert = blockIdx.y;
  const int first = params.begin[expert];
  const int total = params.begin[expert + 1] - first;
  if (total == 0) return;
  const int lane = threadIdx.x % kWarpSize;
  const int feature =
      (blockIdx.x * kExpertWarps + static_cast<int>(threadIdx.x) / kWarpSize) * 8 + lane / 4;
  const bool valid = feature < call.width;
  const bf16* gate =
      call.gate_up + (int64_t{expert} * 2 * call.width + (valid ? feature : 0)) * call.hidden;
  const bf16* up = gate + int64_t{call.width} * call.hidden;
  for (int done = 0; done < total; done += kRowTiles * 8) {
    const int count = min(kRowTiles * 8, total - done);
    float acc[kRowTiles][4];
    TileProduct(
        gate, up, valid, valid, call.x, call.hidden, count,
        [&](int idx) { return params.order[first + done + idx] / call.top_k; }, acc);
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const int idx = tile * 8 + lane % 4 * 2 + column;
        if (idx >= count || !valid) continue;
        const float value = GeluTanh(acc[tile][column]) * acc[tile][2 + column];
        params.act[static_cast<int64_t>(first + done + idx) * call.width + feature] =
            __float2bfloat16(value);
      }
    }
  }
}

// outputs = down act. A warp takes sixteen features.
__global__ void __launch_bounds__(kExpertThreads) ExpertDownKernel(ExpertKernelParams params) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const ExpertsCall& call = params.call;
  const int expert = blockIdx.y;
  const int first = params.begin[expert];
  const int total = params.begin[expert + 1] - first;
  if (total == 0) return;
  const int lane = threadIdx.x % kWarpSize;
  const int feature =
      (blockIdx.x * kExpertWarps + static_cast<int>(threadIdx.x) / kWarpSize) * 16 + lane / 4;
  const bool low_valid = feature < call.hidden;
  const bool high_valid = feature + 8 < call.hidden;
  const bf16* base = call.down + int64_t{expert} * call.hidden * call.width;
  const bf16* low = base + int64_t{low_valid ? feature : 0} * call.width;
  const bf16* high = base + int64_t{high_valid ? feature + 8 : 0} * call.width;
  for (int done = 0; done < total; done += kRowTiles * 8) {
    const int count = min(kRowTiles * 8, total - done);
    float acc[kRowTiles][4];
    TileProduct(
        low, high, low_valid, high_valid, params.act, call.width, count,
        [&](int idx) { return first + done + idx; }, acc);
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const int idx = tile * 8 + lane % 4 * 2 + column;
        if (idx >= count) continue;
        bf16* out =
            params.outputs + int64_t{params.order[first + done + idx]} * call.hidden + feature;
        if (low_valid) out[0] = __float2bfloat16(acc[tile][column]);
        if (high_valid) out[8] = __float2bfloat16(acc[tile][2 + column]);
      }
    }
  }
}

// A block per row: ranks summed in order, then both branches normed and added.
__global__ void __launch_bounds__(kCombineThreads) CombineKernel(ExpertKernelParams params) {
  extern __shared__ float sums[];  // [hidden]
  __shared__ float scratch[kCombineThreads / kWarpSize];
  AllowNextKernel();
  WaitForPreviousKernel();
  const ExpertsCall& call = params.call;
  const int64_t row = blockIdx.x;
  bf16* dense = call.block_out + row * call.hidden;
  float expert_squares = 0.0f;
  float dense_squares = 0.0f;
  for (int at = threadIdx.x; at < call.hidden; at += kCombineThreads) {
    float sum = 0.0f;
    for (int rank = 0; rank < call.top_k; ++rank) {
      const int64_t assignment = row * call.top_k + rank;
      sum += call.weights[assignment] *
             __bfloat162float(params.outputs[assignment * call.hidden + at]);
    }
    sums[at] = sum;
    expert_squares += sum * sum;
    const float value = __bfloat162float(dense[at]);
    dense_squares += value * value;
  }
  const float dim = static_cast<float>(call.hidden);
  const float expert_inverse =
      rsqrtf(BlockSum<kCombineThreads>(expert_squares, scratch) / dim + call.eps);
  const float dense_inverse =
      rsqrtf(BlockSum<kCombineThreads>(dense_squares, scratch) / dim + call.eps);
  for (int at = threadIdx.x; at < call.hidden; at += kCombineThreads) {
    const float value = __bfloat162float(dense[at]);
    dense[at] = __float2bfloat16(value * dense_inverse * call.post_dense_norm[at] +
                                 sums[at] * expert_inverse * call.post_expert_norm[at]);
  }
}

template <typename Kernel>
void AllowShared(Kernel kernel, size_t bytes) {
  constexpr size_t kWithoutAsking = 48 << 10;
  if (bytes <= kWithoutAsking) return;
  LAPIDARY_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(bytes)));
}

}  // namespace

void RunRoute(const LaunchContext& context, const RouteCall& call) {
  CHECK(call.num_experts <= kMaxExperts && call.top_k <= kMaxTopK && call.top_k <= call.num_experts)
      << call.num_experts << " " << call.top_k;
  constexpr int kManyRows = 4;
  const bool many = call.rows >= 64;
  const int rows_per_block = many ? kManyRows : 1;
  const size_t shared_bytes =
      static_cast<size_t>(rows_per_block) * (call.hidden + call.num_experts) * sizeof(float);
  const auto kernel = many ? RouteKernel<kManyRows> : RouteKernel<1>;
  AllowShared(kernel, shared_bytes);
  Launch(context, kernel, dim3((call.rows + rows_per_block - 1) / rows_per_block),
         dim3(kRouteThreads), shared_bytes, call);
}

int64_t ExpertScratchBytes(int rows, int hidden, int width, int num_experts, int top_k) {
  return ExpertLayout(rows, hidden, width, num_experts, top_k).total;
}

void RunExperts(const LaunchContext& context, const ExpertsCall& call) {
  CHECK(call.hidden % 8 == 0 && call.width % 8 == 0) << call.hidden << " " << call.width;
  const ExpertLayout layout(call.rows, call.hidden, call.width, call.num_experts, call.top_k);
  std::byte* scratch = static_cast<std::byte*>(call.scratch);
  int32_t* order = reinterpret_cast<int32_t*>(scratch + layout.order);
  int32_t* begin = reinterpret_cast<int32_t*>(scratch + layout.begin);
  const ExpertKernelParams params{call, order, begin, reinterpret_cast<bf16*>(scratch + layout.act),
                                  reinterpret_cast<bf16*>(scratch + layout.outputs)};
  Launch(context, GroupKernel, dim3(1), dim3(kGroupThreads), 0, call.experts,
         call.rows * call.top_k, call.num_experts, order, begin);
  constexpr int kGateFeatures = 8 * kExpertWarps;
  constexpr int kDownFeatures = 16 * kExpertWarps;
  Launch(context, ExpertGateUpKernel,
         dim3((call.width + kGateFeatures - 1) / kGateFeatures, call.num_experts),
         dim3(kExpertThreads), 0, params);
  Launch(context, ExpertDownKernel,
         dim3((call.hidden + kDownFeatures - 1) / kDownFeatures, call.num_experts),
         dim3(kExpertThreads), 0, params);
  const size_t shared_bytes = call.hidden * sizeof(float);
  AllowShared(CombineKernel, shared_bytes);
  Launch(context, CombineKernel, dim3(call.rows), dim3(kCombineThreads), shared_bytes, params);
}

}  // namespace lapidary::cuda
