// The tiles of linear_wide.h in numbers: what its planning and its kernel agree on.
#pragma once

#include "base/host_device.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/tile_type.h"

namespace lapidary::cuda {

inline constexpr int kWideKBlock = 64;  // columns of a block of k; both operands come in these

// Blocks of k in a stage of the ring.
LAPIDARY_HOST_DEVICE constexpr int WideStageBlocks(TileType type) { return IsTiled(type) ? 2 : 1; }

// Floats behind a row of staged sums: a warp's stores spread over all banks.
inline constexpr int kWidePadding = 4;

// A warpgroup multiplies 64 weight rows; two of them share a tile of 64, half of x's rows each.
LAPIDARY_HOST_DEVICE constexpr int WideConsumerWarps(int tile_rows) {
  return tile_rows == 64 ? 8 : tile_rows / 16;
}
// The consumers and one warp that copies.
LAPIDARY_HOST_DEVICE constexpr int WideThreads(int tile_rows) {
  return 32 * (WideConsumerWarps(tile_rows) + 1);
}
// What registers allow.
constexpr int WideBlocksPerSm(TileType type, int tile_rows, int columns) {
  if (IsTiled(type)) return tile_rows <= 128 && columns <= 32 ? 2 : 1;
  return tile_rows <= 128 ? 2 : 1;
}

// Of a stage: x, then the weights. Both begin at multiples of 1,024.
LAPIDARY_HOST_DEVICE constexpr int WideInputBytes(TileType type, int columns) {
  return WideStageBlocks(type) * columns * kWideKBlock * 2;
}
LAPIDARY_HOST_DEVICE constexpr int WideStripeBytes(TileType type) {
  return WideStageBlocks(type) * TileUnitBytes(type);
}
LAPIDARY_HOST_DEVICE constexpr int WideWeightBytes(TileType type, int tile_rows) {
  return IsTiled(type) ? tile_rows / kTileRows * WideStripeBytes(type)
                       : tile_rows * kWideKBlock * 2;
}
LAPIDARY_HOST_DEVICE constexpr int WideStageBytes(TileType type, int tile_rows, int columns) {
  return WideInputBytes(type, columns) + WideWeightBytes(type, tile_rows);
}
// Of staged sums: a row, and all of a tile.
LAPIDARY_HOST_DEVICE constexpr int WideRowBytes(int tile_rows) {
  return (tile_rows + kWidePadding) * static_cast<int>(sizeof(float));
}
LAPIDARY_HOST_DEVICE constexpr int WideStagingBytes(int tile_rows, int columns) {
  return columns * WideRowBytes(tile_rows);
}

// Quantised weights have tiles of so many rows, or twice that (WidePlan).
inline constexpr int kTiledWideRows = 128;

// Rows of x that a kernel multiplies at once: there is one for each multiple of 16, with quantised
// weights and more than 64 rows for each of 32.
inline int WideColumns(TileType type, int rows) {
  return IsTiled(type) && rows > 64 ? (rows + 31) / 32 * 32 : (rows + 15) / 16 * 16;
}
inline int NumWideKBlocks(int in_dim) { return (in_dim + kWideKBlock - 1) / kWideKBlock; }
inline int NumWideTiles(const LinearCall& call, int tile_rows) {
  return (call.out_dim() + tile_rows - 1) / tile_rows;
}

}  // namespace lapidary::cuda
