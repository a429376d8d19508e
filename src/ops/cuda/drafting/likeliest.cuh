// The likeliest token of a row that many blocks look through: the best score, the lower id among
// equals.
#pragma once

#include "ops/cuda/drafting/drafting.h"
#include "ops/cuda/sampling/sampling_select.cuh"
#include "ops/cuda/sampling/store_draft.cuh"

namespace lapidary::cuda {

// A token's score and id as one number; larger is better. No token's is 0.
__device__ __forceinline__ unsigned long long TokenKey(float score, int32_t id) {
  return static_cast<unsigned long long>(OrderedBits(score)) << 32 | (0xffffffffu - id);
}

// All threads of a block of kWarps warps, each warp with its best. The last of the row's blocks
// makes the draft of it, and leaves zeros.
template <int kWarps>
__device__ __forceinline__ void StoreLikeliest(unsigned long long best, const RowWinners& winners,
                                               const DraftDraws& draft, int row, int num_blocks) {
  __shared__ unsigned long long bests[kWarps];
  if (threadIdx.x % kWarpSize == 0) bests[threadIdx.x / kWarpSize] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int idx = 1; idx < kWarps; ++idx) best = max(best, bests[idx]);
  atomicMax(winners.keys + row, best);
  __threadfence();
  if (atomicAdd(winners.counters + row, 1) + 1 < num_blocks) return;
  __threadfence();
  const unsigned long long key = atomicExch(winners.keys + row, 0ull);
  winners.counters[row] = 0;
  StoreDraft(draft, row, static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key)));
}

}  // namespace lapidary::cuda
