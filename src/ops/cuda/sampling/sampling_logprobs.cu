#include "ops/cuda/sampling/sampling_kernels.h"
#include "ops/cuda/sampling/sampling_rows.cuh"
#include "ops/cuda/sampling/sampling_top.cuh"

namespace lapidary::cuda {
namespace {

__global__ void __launch_bounds__(kDrawThreads) LogprobKernel(SamplingCall call) {
  __shared__ DrawShared shared;
  __shared__ int32_t top_ids[kMaxTopLogprobs];
  __shared__ int num_top;
  __shared__ TopShared top;
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow spec = call.spec[blockIdx.x];
  if (!IsHere(call, spec) || !WantsLogprobs(call, spec)) return;
  SampledRow& out = call.out[blockIdx.x];
  const float* row = RowLogits(call, spec);
  const float* maxima = BlockMaxima(call, spec);
  const int num_blocks = NumRowBlocks(call.vocab_size);
  const float max = RowMax(maxima, num_blocks, shared);
  if (max == kInfinity || max == -kInfinity) {
    if (threadIdx.x == 0) out.status = SamplingStatus::kNotFinite;
    return;
  }
  const unsigned long long mass =
      RowMass({row, nullptr}, call.vocab_size, max, 1.0f, shared.select);
  const double log_total = log(static_cast<double>(mass) / draw::kMassScale);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(row[id]) - max - log_total);
  };
  const SamplingSlot& slot = call.slots[spec.slot];
  const int num_logprobs = spec.scored_id >= 0 ? slot.num_score_top : slot.num_logprobs;
  const int wanted = min(min(num_logprobs, call.vocab_size), kMaxTopLogprobs);
  if (wanted > 0 && FindTop({row, nullptr}, maxima, call.vocab_size, max, wanted, top) &&
      top.num_keys >= wanted) {
    if (threadIdx.x < wanted) {
      const int32_t id = TopId(top.keys[threadIdx.x]);
      out.top_ids[threadIdx.x] = id;
      out.top_logprobs[threadIdx.x] = logprob(id);
    }
  } else if (wanted > 0) {
    Candidates candidates{{row, nullptr}, maxima, call.vocab_size, -kInfinity, nullptr, -1};
    int32_t* list = reinterpret_cast<int32_t*>(BlockMaxima(call, spec) + num_blocks);
    CollectTop(candidates, wanted, list, shared);
    const auto one = [](float, int32_t) { return 1ull; };
    const Cutoff cutoff = SelectCutoff(candidates, wanted, one, shared);
    if (threadIdx.x == 0) num_top = 0;
    __syncthreads();
    candidates.ForEach([&](float x, int32_t id) {
      if (cutoff.Keeps(x, id)) top_ids[atomicAdd(&num_top, 1)] = id;
    });
    __syncthreads();
    if (threadIdx.x < wanted) {  // The rank of a token is the number of better ones.
      const int32_t id = top_ids[threadIdx.x];
      int rank = 0;
      for (int idx = 0; idx < wanted; ++idx) {
        const int32_t other = top_ids[idx];
        rank += row[other] > row[id] || (row[other] == row[id] && other < id);
      }
      out.top_ids[rank] = id;
      out.top_logprobs[rank] = logprob(id);
    }
  }
  if (threadIdx.x == 0) {
    out.num_top = wanted;
    out.logprob = out.id >= 0 ? logprob(out.id) : 0.0f;
  }
}

}  // namespace

void RunLogprobs(const LaunchContext& context, const SamplingCall& call) {
  Launch(context, LogprobKernel, dim3(call.rows), dim3(kDrawThreads), 0, call);
}

}  // namespace lapidary::cuda
