// Products of 9 to 128 rows with weights of 4 bits.
#include "ops/cuda/linear/linear_wide_kernel.cuh"

namespace lapidary::cuda {

template <>
WideKernelPointer WideKernelFor<TileType::kU4F16>(int tile_rows, int columns, bool scales_last) {
  return TiledWideKernelFor<TileType::kU4F16>(tile_rows, columns, scales_last);
}
template <>
WideKernelPointer WideKernelFor<TileType::kU4Bf16>(int tile_rows, int columns, bool scales_last) {
  return TiledWideKernelFor<TileType::kU4Bf16>(tile_rows, columns, scales_last);
}

}  // namespace lapidary::cuda
