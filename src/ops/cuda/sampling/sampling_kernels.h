// The kernels that RunSampling puts together, each behind its launch.
#pragma once

#include "ops/cuda/sampling/sampling.h"

namespace lapidary::cuda {

// Penalties, biases and suppressed tokens, in place; what they replace is kept.
void RunAdjust(const LaunchContext& context, const SamplingCall& call);
// Puts back what was adjusted.
void RunRestore(const LaunchContext& context, const SamplingCall& call);
// The maximum of every 64 logits. `only_logprobs`: rows that want none are skipped, and what may
// not come counts as any other.
void RunScan(const LaunchContext& context, const SamplingCall& call, bool only_logprobs);
void RunDraw(const LaunchContext& context, const SamplingCall& call);
void RunLogprobs(const LaunchContext& context, const SamplingCall& call);

}  // namespace lapidary::cuda
