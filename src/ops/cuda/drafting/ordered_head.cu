#include "base/check.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/drafting/drafting.h"
#include "ops/cuda/drafting/likeliest.cuh"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kKeysPerThread = kMaxCentroids / kThreads;

// Three counts below 2^16 over the block, the same in every thread: two in `low`, one in `high`.
struct Counts {
  uint32_t low = 0;
  uint32_t high = 0;
};
// Calls alternate between two scratches.
__device__ __forceinline__ Counts BlockCounts(Counts counts, Counts* scratch) {
  counts.low = __reduce_add_sync(0xffffffffu, counts.low);
  counts.high = __reduce_add_sync(0xffffffffu, counts.high);
  if (threadIdx.x % kWarpSize == 0) scratch[threadIdx.x / kWarpSize] = counts;
  __syncthreads();
  Counts total;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    total.low += scratch[warp].low;
    total.high += scratch[warp].high;
  }
  return total;
}

// A block per row: the ids of its best centroids, in no order. The lower id among equals.
__global__ void __launch_bounds__(kThreads)
    ChooseCentroidsKernel(const __grid_constant__ OrderedHeadCall call) {
  __shared__ Counts counts[2][kWarps];
  __shared__ int num_chosen;
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t row = blockIdx.x;
  const float* scores = call.centroid_scores + row * call.num_centroids;
  // Neighbours are a thread's, so that the order of threads is that of ids.
  const int per_thread = (call.num_centroids + kThreads - 1) / kThreads;
  const int first = static_cast<int>(threadIdx.x) * per_thread;
  uint32_t keys[kKeysPerThread];
#pragma unroll
  for (int idx = 0; idx < kKeysPerThread; ++idx) {
    const bool is_one = idx < per_thread && first + idx < call.num_centroids;
    keys[idx] = is_one ? OrderedBits(scores[first + idx]) : 0;
  }
  // The largest key that is reached by top_k of them, two bits at a time.
  const uint32_t wanted = call.top_k;
  uint32_t least = 0;
  for (int shift = 30; shift >= 0; shift -= 2) {
    Counts own;
#pragma unroll
    for (int idx = 0; idx < kKeysPerThread; ++idx) {
      own.low +=
          (keys[idx] >= (least | 1u << shift)) + (keys[idx] >= (least | 2u << shift)) * 0x10000u;
      own.high += keys[idx] >= (least | 3u << shift);
    }
    const Counts total = BlockCounts(own, counts[shift / 2 % 2]);
    const uint32_t digit = total.high >= wanted              ? 3
                           : (total.low >> 16) >= wanted     ? 2
                           : (total.low & 0xffffu) >= wanted ? 1
                                                             : 0;
    least |= digit << shift;
  }
  int num_equal = 0;
  Counts above;
#pragma unroll
  for (int idx = 0; idx < kKeysPerThread; ++idx) {
    num_equal += keys[idx] == least;
    above.high += keys[idx] > least;
  }
  const int left = call.top_k - static_cast<int>(BlockCounts(above, counts[1]).high);
  // Equal keys before this thread's.
  const int lane = threadIdx.x % kWarpSize;
  int before = num_equal;
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, offset);
    if (lane >= offset) before += other;
  }
  if (lane == kWarpSize - 1) counts[0][threadIdx.x / kWarpSize].low = before;
  if (threadIdx.x == 0) num_chosen = 0;
  __syncthreads();
  before -= num_equal;
  for (int warp = 0; warp < static_cast<int>(threadIdx.x) / kWarpSize; ++warp) {
    before += static_cast<int>(counts[0][warp].low);
  }
  int32_t* chosen = call.chosen + row * call.top_k;
#pragma unroll
  for (int idx = 0; idx < kKeysPerThread; ++idx) {
    if (keys[idx] < least || (keys[idx] == least && before++ >= left)) continue;
    if (first + idx < call.num_centroids) chosen[atomicAdd(&num_chosen, 1)] = first + idx;
  }
}

// A block per (centroid, part of its tokens, row): few tokens to a warp, all on their way at once.
__global__ void __launch_bounds__(kThreads)
    ScoreTokensKernel(const __grid_constant__ OrderedHeadCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t row = blockIdx.z;
  const int tokens = call.vocab_size / call.num_centroids;
  const int centroid = call.chosen[row * call.top_k + blockIdx.x];
  const int64_t first = int64_t{centroid} * tokens;
  const bf16* head = static_cast<const bf16*>(call.head.data) + first * call.hidden_size;
  const bf16* x = call.x + row * call.hidden_size;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  unsigned long long best = 0;
#pragma unroll 4
  for (int token = blockIdx.y * kWarps + warp; token < tokens; token += gridDim.y * kWarps) {
    float sum = 0.0f;
    for (int at = lane * 8; at < call.hidden_size; at += kWarpSize * 8) {
      float weights[8];
      float values[8];
      Load8(head + int64_t{token} * call.hidden_size + at, weights);
      Load8(x + at, values);
#pragma unroll
      for (int idx = 0; idx < 8; ++idx) sum = fmaf(weights[idx], values[idx], sum);
    }
    sum = WarpSum(sum);
    const int32_t id = call.token_ordering[first + token];
    if (call.logits != nullptr) {
      if (lane == 0) call.logits[row * call.vocab_size + id] = sum;
      continue;
    }
    best = max(best, TokenKey(sum, id));
  }
  if (call.logits != nullptr) return;
  StoreLikeliest<kWarps>(best, call.winner, call.draft, static_cast<int>(row),
                         static_cast<int>(gridDim.x * gridDim.y));
}

__global__ void __launch_bounds__(kThreads) FillKernel(float* values, int64_t count, float value) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t idx = int64_t{blockIdx.x} * kThreads + threadIdx.x; idx < count; idx += step) {
    values[idx] = value;
  }
}

}  // namespace

void RunOrderedHead(const LaunchContext& context, const OrderedHeadCall& call) {
  CHECK_OK(OrderedHeadSupports(call.num_centroids, call.top_k));
  CheckBf16(call.head, call.vocab_size, call.hidden_size);
  Launch(context, ChooseCentroidsKernel, dim3(call.rows), dim3(kThreads), 0, call);
  if (call.logits != nullptr) {
    const int64_t count = int64_t{call.rows} * call.vocab_size;
    Launch(context, FillKernel, dim3(context.Device().num_sms * 4), dim3(kThreads), 0, call.logits,
           count, -kInfinity);
  }
  // One row fills the SMs by parts of centroids, many by themselves.
  const int tokens = call.vocab_size / call.num_centroids;
  constexpr int kTokensPerWarp = 4;
  const int most_parts = (tokens + kTokensPerWarp * kWarps - 1) / (kTokensPerWarp * kWarps);
  const int parts = call.rows <= 8 ? most_parts : 1;
  Launch(context, ScoreTokensKernel, dim3(call.top_k, parts, call.rows), dim3(kThreads), 0, call);
}

}  // namespace lapidary::cuda
