#include "ops/cuda/sampling/accept_round.cuh"

namespace lapidary::cuda {
namespace {

// A block for each row; those of a round's first accept it.
__global__ void __launch_bounds__(kScanThreads) AcceptKernel(SamplingCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow& spec = call.spec[blockIdx.x];
  if (spec.scored_id >= 0 || spec.rows_before != 0 || spec.num_drafts == 0) return;
  AcceptRound(call, blockIdx.x);
}

}  // namespace

void RunAccept(const LaunchContext& context, const SamplingCall& call) {
  Launch(context, AcceptKernel, dim3(call.rows), dim3(kScanThreads), 0, call);
}

}  // namespace lapidary::cuda
