#include "ops/cuda/linear/linear_large_kernel.cuh"

namespace lapidary::cuda {

LargeKernelPointer LargeKernelOf256(int columns, bool gated) {
  return gated ? LargeKernelFor<2, true>(columns) : LargeKernelFor<2, false>(columns);
}

}  // namespace lapidary::cuda
