// A row goes through at most six kernels: adjust in place, scan, draw, put back what was adjusted,
// logprobs, accept.
#include "ops/cuda/sampling/sampling.h"

#include "base/check.h"
#include "ops/cuda/sampling/sampling_kernels.h"

namespace lapidary::cuda {

void RunSampling(const LaunchContext& context, const SamplingCall& call) {
  CHECK_OK(SamplingSupports(call.vocab_size));
  if (call.needs.adjustments) RunAdjust(context, call);
  RunScan(context, call, /*only_logprobs=*/false);
  RunDraw(context, call);
  if (call.needs.adjustments) RunRestore(context, call);
  if (call.needs.logprobs) {
    if (call.needs.adjustments || call.needs.masks) RunScan(context, call, /*only_logprobs=*/true);
    RunLogprobs(context, call);
  }
}

}  // namespace lapidary::cuda
