#include "ops/cuda/linear/linear_large_kernel.cuh"

namespace lapidary::cuda {

LargeKernelPointer LargeKernelOf128(int columns, bool gated) {
  return gated ? LargeKernelFor<1, true>(columns) : LargeKernelFor<1, false>(columns);
}

}  // namespace lapidary::cuda
