// How patch attention holds a head. No CUDA types: plans use it too.
#pragma once

namespace lapidary::cuda {

// A head's row is a run of 64 dims and, where it has more, a tail of 16: an array of all runs, then
// one of all tails. Dims that a head has not are zeros.
inline constexpr int kHeadRun = 64;
inline constexpr int kHeadTail = 16;

// Dims of a head as the kernels hold it; 0: there is no kernel for so many.
constexpr int PaddedHeadDim(int head_dim) {
  if (head_dim <= kHeadRun) return kHeadRun;
  return head_dim <= kHeadRun + kHeadTail ? kHeadRun + kHeadTail : 0;
}

}  // namespace lapidary::cuda
