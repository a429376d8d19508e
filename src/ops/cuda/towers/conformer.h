// What the audio conformer does between its matrix products, beside tower_rows.h.
#pragma once

#include <cstdint>

#include "ops/cuda/launch.h"
#include "ops/cuda/towers/tower_rows.h"

namespace lapidary::cuda {

inline constexpr int kMaxConvChannels = 128;

// 3 x 3 over (frame, band), every other of both, zeros around; norm over channels, ReLU.
struct SubsampleCall {
  int frames = 0;  // of the input
  int bands = 0;
  int in_channels = 0;   // up to kMaxConvChannels
  int out_channels = 0;  // a divisor of kMaxConvChannels
  float eps = 1e-6f;
  const float* values = nullptr;   // [frames, bands, in_channels]
  const float* weights = nullptr;  // [9 taps, in_channels, out_channels]
  const float* norm = nullptr;     // [out_channels]
  // [(frames + 1) / 2, (bands + 1) / 2, out_channels]; one of the two.
  float* out = nullptr;
  bf16* out_bf16 = nullptr;
};
void RunSubsample(const LaunchContext& context, const SubsampleCall& call);

// Each row sees its own frame and the num_keys - 1 before it:
//   score = cap * tanh(q' . (k' + relative[distance]) / cap)
struct BandAttentionCall {
  int rows = 0;
  int num_heads = 0;
  int head_dim = 0;  // a multiple of 4 up to 256
  int num_keys = 0;  // up to 32
  float cap = 0.0f;
  float key_scale = 1.0f;
  // q, k, v: [rows, num_heads * head_dim] with a row stride.
  const bf16* projected[3] = {};
  int64_t stride = 0;
  Bounds bounds[3];
  const float* query_scale = nullptr;    // [head_dim]
  const float* relative_keys = nullptr;  // [num_keys, num_heads * head_dim], by distance
  bf16* out = nullptr;                   // [rows, num_heads * head_dim]
  Bounds out_bounds;
};
Status BandAttentionSupports(int head_dim, int num_keys);
void RunBandAttention(const LaunchContext& context, const BandAttentionCall& call);

// x = clamp(silu(rmsnorm(mixed) * norm)), where mixed[row] = sum of taps over the row and those
// before it of glu(clamp(started)), each channel by itself.
struct DepthwiseCall {
  int rows = 0;
  int dim = 0;
  int kernel = 0;
  float eps = 1e-6f;
  const bf16* started = nullptr;  // [rows, 2 dim]
  Bounds bounds;
  const float* taps = nullptr;  // [kernel, dim]; the last tap is the row's own
  const float* norm = nullptr;  // [dim]
  bf16* x = nullptr;            // [rows, dim]
  Bounds x_bounds;
};
void RunDepthwise(const LaunchContext& context, const DepthwiseCall& call);

}  // namespace lapidary::cuda
