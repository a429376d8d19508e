// Streaming products of up to 8 rows with weights in bf16.
#include "ops/cuda/linear/linear_skinny_kernel.cuh"

namespace lapidary::cuda {

template <>
SkinnyKernelPointer SkinnyKernelFor<TileType::kBf16>(int depth) {
  return SkinnyKernelOfDepth<TileType::kBf16>(depth);
}

}  // namespace lapidary::cuda
