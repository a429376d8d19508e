// Attention kernels for Hopper: wgmma on large tiles, keys that stream past few rows. attention.cu
// chooses between these and the portable ones (attention_kernel.cuh), which give the same results
// up to rounding.
#pragma once

#include "model/kv_entry.h"
#include "ops/cuda/launch.h"

namespace lapidary::cuda {

struct AttentionParams;  // attention_form.cuh

// Items of up to 32 rows, for steps without prompts.
inline constexpr int kFewRows = 32;
void RunHopperAttentionOfFewRows(const LaunchContext& context, const AttentionParams& params,
                                 const KvEntryPlan& entry);

// Items of up to `tile_rows` rows, 128 or 64, heads of 256 dims.
void RunHopperAttention256(const LaunchContext& context, const AttentionParams& params,
                           int tile_rows);

// Items of up to 64 rows, heads of 512 dims; K is V or apart from it.
void RunHopperAttention512(const LaunchContext& context, const AttentionParams& params,
                           bool k_is_v);

}  // namespace lapidary::cuda
