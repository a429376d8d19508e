#include "ops/cuda/sampling/sampling_kernels.h"
#include "ops/cuda/sampling/sampling_rows.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kScanBlocksPerCta = 128;  // row blocks of one scanning CTA

// The maximum of every 64 logits; NaN where one of them is NaN. A warp takes two blocks at a time:
// sixteen lanes with four logits each. `only_logprobs`: rows that want none are skipped, and what
// may not come counts as any other.
__global__ void __launch_bounds__(kScanThreads) ScanKernel(SamplingCall call, bool only_logprobs) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const SamplingRow spec = RowOfCall(call, blockIdx.y).spec;
  if (!IsHere(call, spec)) return;
  if (only_logprobs && !WantsLogprobs(call, spec)) return;
  const float* row = RowLogits(call, spec);
  const uint32_t* mask = only_logprobs ? nullptr : RowToDraw(call, spec).mask;
  float* maxima = BlockMaxima(call, spec);
  const int num_blocks = NumRowBlocks(call.vocab_size);
  const int half = threadIdx.x / (kWarpSize / 2);
  const int lane = threadIdx.x % (kWarpSize / 2);
  constexpr int kHalves = kScanThreads / (kWarpSize / 2);
  const bool aligned = call.vocab_size % 4 == 0;
#pragma unroll 4
  for (int idx = half; idx < kScanBlocksPerCta; idx += kHalves) {
    const int block = blockIdx.x * kScanBlocksPerCta + idx;
    float best = -kInfinity;
    bool has_nan = false;
    const int first = block * kRowBlock + lane * 4;
    float values[4];
    if (aligned && first + 4 <= call.vocab_size) {
      const float4 loaded = *reinterpret_cast<const float4*>(row + first);
      values[0] = loaded.x;
      values[1] = loaded.y;
      values[2] = loaded.z;
      values[3] = loaded.w;
    } else {
      for (int at = 0; at < 4; ++at) {
        values[at] = first + at < call.vocab_size ? row[first + at] : -kInfinity;
      }
    }
    if (mask != nullptr && first < call.vocab_size) {
      const uint32_t bits = mask[first / 32] >> (first % 32);
      for (int at = 0; at < 4; ++at) {
        if ((bits >> at & 1) == 0) values[at] = -kInfinity;
      }
    }
    for (const float value : values) {
      has_nan |= isnan(value);
      best = fmaxf(best, value);
    }
    if (has_nan) best = kInfinity;  // NaN and +inf are refused alike.
    for (int offset = kWarpSize / 4; offset > 0; offset /= 2) {
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
    }
    if (lane == 0 && block < num_blocks) maxima[block] = best;
  }
}

}  // namespace

void RunScan(const LaunchContext& context, const SamplingCall& call, bool only_logprobs) {
  const int num_ctas = (NumRowBlocks(call.vocab_size) + kScanBlocksPerCta - 1) / kScanBlocksPerCta;
  Launch(context, ScanKernel, dim3(num_ctas, call.rows), dim3(kScanThreads), 0, call,
         only_logprobs);
}

}  // namespace lapidary::cuda
