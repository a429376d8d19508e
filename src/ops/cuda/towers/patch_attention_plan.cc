#include <algorithm>

#include "ops/cuda/towers/patch_attention.h"

namespace lapidary::cuda {

std::vector<PatchTile> MakePatchTiles(const std::vector<int>& rows_of_pictures) {
  std::vector<PatchTile> tiles;
  int begin = 0;
  for (const int rows : rows_of_pictures) {
    for (int first = begin; first < begin + rows; first += kPatchTileRows) {
      tiles.push_back({first, begin, begin + rows});
    }
    begin += rows;
  }
  // Those with the most keys first: what is left for the end is short.
  std::stable_sort(tiles.begin(), tiles.end(), [](const PatchTile& a, const PatchTile& b) {
    return a.end - a.begin > b.end - b.begin;
  });
  return tiles;
}

LastBlocks SplitLastBlocks(int num_blocks, const DeviceInfo& device) {
  const int rest = num_blocks % (2 * device.num_sms);
  for (const int parts : {3, 2}) {
    if (rest * parts <= device.cluster_blocks[parts]) return {rest, parts};
  }
  return {};
}

}  // namespace lapidary::cuda
