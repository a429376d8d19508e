// Attention kernels for Hopper: wgmma on large tiles. attention.cu chooses between these and the
// portable ones (attention_kernel.cuh), which give the same results up to rounding.
#pragma once

#include "ops/cuda/launch.h"

namespace lapidary::cuda {

struct AttentionParams;  // attention_form.cuh

// Items of up to 128 rows, heads of 256 dims.
void RunHopperAttention256(const LaunchContext& context, const AttentionParams& params);

// Items of up to 64 rows, heads of 512 dims; K is V or apart from it.
void RunHopperAttention512(const LaunchContext& context, const AttentionParams& params,
                           bool k_is_v);

}  // namespace lapidary::cuda
