// Streaming products of up to 8 rows with weights of 8 bits.
#include "ops/cuda/linear/linear_skinny_kernel.cuh"

namespace lapidary::cuda {

template <>
SkinnyKernelPointer SkinnyKernelFor<TileType::kS8F16>(int depth) {
  return SkinnyKernelOfDepth<TileType::kS8F16>(depth);
}
template <>
SkinnyKernelPointer SkinnyKernelFor<TileType::kS8Bf16>(int depth) {
  return SkinnyKernelOfDepth<TileType::kS8Bf16>(depth);
}

}  // namespace lapidary::cuda
