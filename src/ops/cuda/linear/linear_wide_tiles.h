// The tiles of linear_wide.h in numbers: what its planning and its kernel agree on.
#pragma once

#include "base/host_device.h"
#include "ops/cuda/linear/linear.h"

namespace lapidary::cuda {

inline constexpr int kWideKBlock = 64;  // values of k of a copy

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
constexpr int WideBlocksPerSm(int tile_rows) { return tile_rows <= 128 ? 2 : 1; }

LAPIDARY_HOST_DEVICE constexpr int WideStageBytes(int tile_rows, int columns) {
  return (tile_rows + columns) * kWideKBlock * 2;
}
// Of staged sums: a row, and all of a tile.
LAPIDARY_HOST_DEVICE constexpr int WideRowBytes(int tile_rows) {
  return (tile_rows + kWidePadding) * static_cast<int>(sizeof(float));
}
LAPIDARY_HOST_DEVICE constexpr int WideStagingBytes(int tile_rows, int columns) {
  return columns * WideRowBytes(tile_rows);
}

inline int WideColumns(int rows) { return (rows + 15) / 16 * 16; }
inline int NumWideKBlocks(int in_dim) { return (in_dim + kWideKBlock - 1) / kWideKBlock; }
inline int NumWideTiles(const LinearCall& call, int tile_rows) {
  return (call.out_dim() + tile_rows - 1) / tile_rows;
}

}  // namespace lapidary::cuda
