// An image cut into square patches, as vision encoders read them.
#pragma once

#include <vector>

#include "media/image.h"

namespace lapidary {

struct ImagePatches {
  int grid_height = 0;
  int grid_width = 0;
  int patch = 0;              // pixels of a side
  std::vector<float> values;  // [grid_height * grid_width, patch * patch * 3], in [0, 1]

  int num_patches() const { return grid_height * grid_width; }
  int patch_values() const { return 3 * patch * patch; }
};

// Row-major over the grid; inside a patch (row, column, channel). Sides must be whole patches.
ImagePatches CutPatches(const Image& image, int patch);

}  // namespace lapidary
