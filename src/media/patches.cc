#include "media/patches.h"

#include "base/check.h"

namespace lapidary {

ImagePatches CutPatches(const Image& image, int patch) {
  CHECK_EQ(image.height % patch, 0);
  CHECK_EQ(image.width % patch, 0);
  // The reference multiplies by the float nearest to 1/255.
  constexpr float kScale = static_cast<float>(1.0 / 255.0);
  ImagePatches patches{image.height / patch, image.width / patch, patch, {}};
  patches.values.resize(image.rgb.size());
  float* out = patches.values.data();
  for (int grid_row = 0; grid_row < patches.grid_height; ++grid_row) {
    for (int grid_column = 0; grid_column < patches.grid_width; ++grid_column) {
      for (int row = 0; row < patch; ++row) {
        const uint8_t* in = image.Row(grid_row * patch + row) + 3 * grid_column * patch;
        for (int idx = 0; idx < 3 * patch; ++idx) *out++ = static_cast<float>(in[idx]) * kScale;
      }
    }
  }
  return patches;
}

}  // namespace lapidary
