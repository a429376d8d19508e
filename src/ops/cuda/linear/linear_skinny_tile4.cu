// Streaming products of up to 8 rows with weights of 4 bits.
#include "ops/cuda/linear/linear_skinny_kernel.cuh"

namespace lapidary::cuda {

template <>
SkinnyKernelPointer SkinnyKernelFor<TileType::kU4F16>(int depth) {
  return SkinnyKernelOfDepth<TileType::kU4F16>(depth);
}
template <>
SkinnyKernelPointer SkinnyKernelFor<TileType::kU4Bf16>(int depth) {
  return SkinnyKernelOfDepth<TileType::kU4Bf16>(depth);
}

}  // namespace lapidary::cuda
