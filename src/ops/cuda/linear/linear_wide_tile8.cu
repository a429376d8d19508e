// Products of 9 to 128 rows with weights of 8 bits.
#include "ops/cuda/linear/linear_wide_kernel.cuh"

namespace lapidary::cuda {

template <>
WideKernelPointer WideKernelFor<TileType::kS8F16>(int tile_rows, int columns, bool scales_last) {
  return TiledWideKernelFor<TileType::kS8F16>(tile_rows, columns, scales_last);
}
template <>
WideKernelPointer WideKernelFor<TileType::kS8Bf16>(int tile_rows, int columns, bool scales_last) {
  return TiledWideKernelFor<TileType::kS8Bf16>(tile_rows, columns, scales_last);
}

}  // namespace lapidary::cuda
