// The per-layer embedding block of some rows as one kernel, with the residual updates before and
// behind it:
//   h1 = (h + rmsnorm(mlp_out) w_mlp) s_mlp
//   h2 = (h1 + rmsnorm(W_p (gelu(W_g h1) * ple)) w_ple) s_layer
//   x  = rmsnorm(h2) w_next
// Its matrices are small, so that four kernels in a row would spend most of their time on starting
// and on handing over.
#pragma once

#include "ops/cuda/linear/linear.h"

namespace lapidary::cuda {

struct PerLayerBlockCall {
  int rows = 0;
  int hidden_size = 0;
  ResidualUpdate before;             // makes h1; its hidden_out and pre_norm are not looked at
  MatrixRef gate;                    // W_g [256, hidden_size]
  MatrixRef projection;              // W_p [hidden_size, 256]
  const bf16* multiplier = nullptr;  // ple [rows, 256] with a row stride
  int64_t multiplier_stride = 0;
  ResidualUpdate after;  // makes h2 and x; its hidden and block_out are not looked at
  bf16* x = nullptr;     // [rows, hidden_size]
};

// For more rows, products of their own are faster.
constexpr int kMaxPerLayerBlockRows = 128;

// Whether the kernel can run a model of these dimensions on a device.
bool PerLayerBlockSupports(const DeviceInfo& device, int hidden_size, int ple_width);
void RunPerLayerBlock(const LaunchContext& context, const PerLayerBlockCall& call);

}  // namespace lapidary::cuda
