// Attention of patches among themselves: every patch of a picture sees every other, scale 1.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/towers/padded_head.h"
#include "ops/cuda/towers/tower_rows.h"

namespace lapidary::cuda {

Status PatchAttentionSupports(int head_dim);

// Queries [first_query, first_query + kPatchTileRows) of a picture whose rows are [begin, end).
struct PatchTile {
  int32_t first_query = 0;
  int32_t begin = 0;
  int32_t end = 0;
};
inline constexpr int kPatchTileRows = 128;
// Of pictures that lie one behind the other, so many rows each.
std::vector<PatchTile> MakePatchTiles(const std::vector<int>& rows_of_pictures);

// Two blocks, each a tile of one head, run on an SM at a time. Where the blocks of the last round
// are so few that most SMs have none, each is shared by `parts` SMs.
struct LastBlocks {
  int count = 0;  // that are shared
  int parts = 2;  // 2 or 3

  bool operator==(const LastBlocks&) const = default;
};
LastBlocks SplitLastBlocks(int num_blocks, const DeviceInfo& device);

struct PatchAttentionCall {
  int rows = 0;
  int num_heads = 0;
  int head_dim = 0;
  const bf16* heads = nullptr;       // runs of q, k, v [3, num_heads, rows, 64], then their tails
  const PatchTile* tiles = nullptr;  // [num_tiles], on the device
  int num_tiles = 0;
  bf16* out = nullptr;  // [rows, num_heads * head_dim]
  Bounds out_bounds;

  const bf16* tails() const { return heads + int64_t{3} * num_heads * rows * kHeadRun; }
};
void RunPatchAttention(const LaunchContext& context, const PatchAttentionCall& call);

}  // namespace lapidary::cuda
