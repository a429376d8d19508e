// How patch attention holds a head. No CUDA types: plans use it too.
#pragma once

#include <initializer_list>

namespace lapidary::cuda {

// Dims of a head as the kernels hold it; 0: there is no kernel for so many.
constexpr int PaddedHeadDim(int head_dim) {
  for (const int padded : {32, 64, 80}) {
    if (head_dim <= padded) return padded;
  }
  return 0;
}

}  // namespace lapidary::cuda
