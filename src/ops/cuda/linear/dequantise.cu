#include <algorithm>

#include "base/check.h"
#include "ops/cuda/linear/dequantise.h"
#include "ops/cuda/linear/weight_tile.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;

// A warp takes units of 8 rows and 64 columns; a lane writes 8 columns of its row, twice.
template <TileType kType>
__global__ void __launch_bounds__(kThreads)
    DequantiseKernel(const void* tiles, int num_units, int row_units, bf16* out) {
  AllowNextKernel();
  WaitForPreviousKernel();
  using Tile = WeightTile<kType>;
  const int lane = threadIdx.x % 32;
  const int row_len = row_units * Tile::kStep;
  for (int unit = (blockIdx.x * kThreads + threadIdx.x) / 32; unit < num_units;
       unit += gridDim.x * (kThreads / 32)) {
    const int stripe = unit / row_units;
    const int column = (unit - stripe * row_units) * Tile::kStep;
    uint4 values[2];
    Tile::Dequantise(
        static_cast<const unsigned char*>(tiles) + static_cast<int64_t>(unit) * Tile::kUnitBytes,
        lane, values);
    bf16* const target =
        out + static_cast<int64_t>(stripe * 8 + lane / 4) * row_len + column + lane % 4 * 8;
    *reinterpret_cast<uint4*>(target) = values[0];
    *reinterpret_cast<uint4*>(target + 32) = values[1];
  }
}

template <TileType kType>
void Run(const LaunchContext& context, const MatrixRef& weights, bf16* out) {
  const int row_units = weights.cols / 64;
  const int64_t num_units = static_cast<int64_t>(weights.rows / 8) * row_units;
  const int64_t blocks = std::min<int64_t>((num_units + kThreads / 32 - 1) / (kThreads / 32),
                                           int64_t{kBlocksPerSm} * context.Device().num_sms);
  Launch(context, DequantiseKernel<kType>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0,
         weights.data, static_cast<int>(num_units), row_units, out);
}

}  // namespace

void RunDequantise(const LaunchContext& context, const MatrixRef& weights, bf16* out) {
  switch (TileTypeOf(weights)) {
    case TileType::kU4F16:
      return Run<TileType::kU4F16>(context, weights, out);
    case TileType::kU4Bf16:
      return Run<TileType::kU4Bf16>(context, weights, out);
    case TileType::kS8F16:
      return Run<TileType::kS8F16>(context, weights, out);
    case TileType::kS8Bf16:
      return Run<TileType::kS8Bf16>(context, weights, out);
    case TileType::kBf16:
      CHECK(false) << "weights that are in bf16 already";
  }
}

}  // namespace lapidary::cuda
