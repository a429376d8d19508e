#include "base/check.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/towers/conformer.h"
#include "ops/cuda/towers/tower_row.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;

// A block per output place; the threads of a channel share its taps.
__global__ void __launch_bounds__(kMaxConvChannels)
    SubsampleKernel(const __grid_constant__ SubsampleCall call) {
  __shared__ float inputs[9 * kMaxConvChannels];
  __shared__ float parts[kMaxConvChannels];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int out_bands = (call.bands + 1) / 2;
  const int first_frame = static_cast<int>(blockIdx.x) / out_bands * 2 - 1;
  const int first_band = static_cast<int>(blockIdx.x) % out_bands * 2 - 1;
  const int num_inputs = 9 * call.in_channels;
  for (int idx = threadIdx.x; idx < num_inputs; idx += kMaxConvChannels) {
    const int tap = idx / call.in_channels;
    const int frame = first_frame + tap / 3;
    const int band = first_band + tap % 3;
    const bool is_inside = frame >= 0 && frame < call.frames && band >= 0 && band < call.bands;
    inputs[idx] = is_inside ? call.values[(int64_t{frame} * call.bands + band) * call.in_channels +
                                          idx % call.in_channels]
                            : 0.0f;
  }
  __syncthreads();
  const int channel = static_cast<int>(threadIdx.x) % call.out_channels;
  const int num_parts = kMaxConvChannels / call.out_channels;
  float sum = 0.0f;
  for (int idx = threadIdx.x / call.out_channels; idx < num_inputs; idx += num_parts) {
    sum += call.weights[int64_t{idx} * call.out_channels + channel] * inputs[idx];
  }
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return;
  // One warp: channels l, l + 32, ...
  constexpr int kPerLane = kMaxConvChannels / kWarpSize;
  float values[kPerLane] = {};
  float total = 0.0f;
#pragma unroll
  for (int idx = 0; idx < kPerLane; ++idx) {
    const int own = static_cast<int>(threadIdx.x) + idx * kWarpSize;
    if (own >= call.out_channels) continue;
    for (int part = 0; part < num_parts; ++part)
      values[idx] += parts[part * call.out_channels + own];
    total += values[idx];
  }
  const float mean = WarpSum(total) / static_cast<float>(call.out_channels);
  float squares = 0.0f;
#pragma unroll
  for (int idx = 0; idx < kPerLane; ++idx) {
    const int own = static_cast<int>(threadIdx.x) + idx * kWarpSize;
    if (own < call.out_channels) squares += (values[idx] - mean) * (values[idx] - mean);
  }
  const float inverse = InverseRms(WarpSum(squares), call.out_channels, call.eps);
#pragma unroll
  for (int idx = 0; idx < kPerLane; ++idx) {
    const int own = static_cast<int>(threadIdx.x) + idx * kWarpSize;
    if (own >= call.out_channels) continue;
    const float value = fmaxf((values[idx] - mean) * inverse * call.norm[own], 0.0f);
    const int64_t at = int64_t{blockIdx.x} * call.out_channels + own;
    if (call.out != nullptr) {
      call.out[at] = value;
    } else {
      call.out_bf16[at] = __float2bfloat16_rn(value);
    }
  }
}

constexpr int kMaxHeadDim = 256;
constexpr int kMaxBandKeys = 32;

// A warp per (row, head); lane d keeps the score of distance d.
__global__ void __launch_bounds__(kThreads)
    BandAttentionKernel(const __grid_constant__ BandAttentionCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t task = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (task >= int64_t{call.rows} * call.num_heads) return;
  const int64_t row = task / call.num_heads;
  const int64_t head_at = task % call.num_heads * call.head_dim;
  const int64_t dim = int64_t{call.num_heads} * call.head_dim;
  const int num_quads = call.head_dim / 4;
  const int lane = static_cast<int>(threadIdx.x % kWarpSize);
  using Head = WarpRow<kMaxHeadDim / 4 / kWarpSize>;
  const auto load = [&](int part, int64_t from, Head& head) {
    head.Load(call.projected[part] + from * call.stride + head_at, num_quads);
    head.ForEach(num_quads, [&](int, float4& v) { v = Clamp(v, call.bounds[part]); });
  };
  Head query;
  load(0, row, query);
  query.ForEach(num_quads, [&](int quad, float4& v) {
    const float4 scale = reinterpret_cast<const float4*>(call.query_scale)[quad];
    v = {v.x * scale.x, v.y * scale.y, v.z * scale.z, v.w * scale.w};
  });
  const int num_keys = static_cast<int>(row + 1 < call.num_keys ? row + 1 : call.num_keys);
  float own_score = -INFINITY;
  for (int distance = 0; distance < num_keys; ++distance) {
    Head key;
    Head relative;
    load(1, row - distance, key);
    relative.Load(call.relative_keys + distance * dim + head_at, num_quads);
    float product = 0.0f;
#pragma unroll
    for (int idx = 0; idx < kMaxHeadDim / 4 / kWarpSize; ++idx) {
      const float4 q = query.quads[idx];
      const float4 k = MulAdd(key.quads[idx], call.key_scale, relative.quads[idx]);
      product += q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w;
    }
    const float score = Softcap(WarpSum(product), call.cap);
    if (lane == distance) own_score = score;
  }
  float maximum = own_score;
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
  }
  const float weight = __expf(own_score - maximum);
  const float total = WarpSum(weight);
  Head sum;
  sum.Clear();
  for (int distance = 0; distance < num_keys; ++distance) {
    Head value;
    load(2, row - distance, value);
    const float share = __shfl_sync(0xffffffffu, weight, distance) / total;
#pragma unroll
    for (int idx = 0; idx < kMaxHeadDim / 4 / kWarpSize; ++idx) {
      sum.quads[idx] = MulAdd(value.quads[idx], share, sum.quads[idx]);
    }
  }
  sum.Store(call.out + row * dim + head_at, num_quads, call.out_bounds);
}

__device__ __forceinline__ float Sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// A warp per row.
template <int kQuads>
__global__ void __launch_bounds__(kThreads)
    DepthwiseKernel(const __grid_constant__ DepthwiseCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int row = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarpSize);
  if (row >= call.rows) return;
  const int num_quads = call.dim / 4;
  WarpRow<kQuads> mixed;
  mixed.Clear();
  for (int tap = 0; tap < call.kernel; ++tap) {
    const int from = row - (call.kernel - 1 - tap);
    if (from < 0) continue;
    const uint2* const values =
        reinterpret_cast<const uint2*>(call.started + int64_t{from} * 2 * call.dim);
    const uint2* const gates = values + num_quads;
    const float4* const taps = reinterpret_cast<const float4*>(call.taps + int64_t{tap} * call.dim);
    mixed.ForEach(num_quads, [&](int quad, float4& v) {
      const float4 value = Clamp(UnpackBf16x4(values[quad]), call.bounds);
      const float4 gate = Clamp(UnpackBf16x4(gates[quad]), call.bounds);
      const float4 factor = taps[quad];
      v.x += factor.x * value.x * Sigmoid(gate.x);
      v.y += factor.y * value.y * Sigmoid(gate.y);
      v.z += factor.z * value.z * Sigmoid(gate.z);
      v.w += factor.w * value.w * Sigmoid(gate.w);
    });
  }
  mixed.Norm(call.norm, call.dim, call.eps);
  mixed.ForEach(num_quads, [&](int, float4& v) {
    v = {v.x * Sigmoid(v.x), v.y * Sigmoid(v.y), v.z * Sigmoid(v.z), v.w * Sigmoid(v.w)};
  });
  mixed.Store(call.x + int64_t{row} * call.dim, num_quads, call.x_bounds);
}

}  // namespace

void RunSubsample(const LaunchContext& context, const SubsampleCall& call) {
  CHECK_LE(call.in_channels, kMaxConvChannels);
  CHECK_EQ(kMaxConvChannels % call.out_channels, 0);
  const int places = (call.frames + 1) / 2 * ((call.bands + 1) / 2);
  Launch(context, SubsampleKernel, dim3(places), dim3(kMaxConvChannels), 0, call);
}

void RunBandAttention(const LaunchContext& context, const BandAttentionCall& call) {
  CHECK_OK(BandAttentionSupports(call.head_dim, call.num_keys));
  static_assert(kMaxBandKeys == kWarpSize);
  const int64_t tasks = int64_t{call.rows} * call.num_heads;
  Launch(context, BandAttentionKernel, dim3(static_cast<unsigned>((tasks + kWarps - 1) / kWarps)),
         dim3(kThreads), 0, call);
}

void RunDepthwise(const LaunchContext& context, const DepthwiseCall& call) {
  CHECK_OK(TowerRowsSupports(call.dim));
  WithQuads(call.dim, [&](auto quads) {
    Launch(context, DepthwiseKernel<decltype(quads)::value>,
           dim3(static_cast<unsigned>((call.rows + kWarps - 1) / kWarps)), dim3(kThreads), 0, call);
  });
}

}  // namespace lapidary::cuda
