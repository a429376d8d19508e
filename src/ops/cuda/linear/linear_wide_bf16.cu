// Products of 9 to 128 rows with weights in bf16.
#include "ops/cuda/linear/linear_wide_kernel.cuh"

namespace lapidary::cuda {
namespace {

template <int kTileRows>
WideKernelPointer KernelForColumns(int columns) {
  switch (columns) {
    case 16:
      return WideKernel<TileType::kBf16, kTileRows, 16>;
    case 32:
      return WideKernel<TileType::kBf16, kTileRows, 32>;
    case 48:
      return WideKernel<TileType::kBf16, kTileRows, 48>;
    case 64:
      return WideKernel<TileType::kBf16, kTileRows, 64>;
    case 80:
      return WideKernel<TileType::kBf16, kTileRows, 80>;
    case 96:
      return WideKernel<TileType::kBf16, kTileRows, 96>;
    case 112:
      return WideKernel<TileType::kBf16, kTileRows, 112>;
    default:
      CHECK_EQ(columns, 128);
      return WideKernel<TileType::kBf16, kTileRows, 128>;
  }
}

}  // namespace

template <>
WideKernelPointer WideKernelFor<TileType::kBf16>(int tile_rows, int columns, bool scales_last) {
  CHECK(!scales_last);
  return tile_rows == 64    ? KernelForColumns<64>(columns)
         : tile_rows == 128 ? KernelForColumns<128>(columns)
                            : KernelForColumns<192>(columns);
}

}  // namespace lapidary::cuda
