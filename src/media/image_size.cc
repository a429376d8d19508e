#include "media/image_size.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lapidary {

Status CheckSoftTokenBudget(int max_soft_tokens) {
  for (const int allowed : {70, 140, 280, 560, 1120}) {
    if (max_soft_tokens == allowed) return {};
  }
  return MakeError("max_soft_tokens is {}; it must be 70, 140, 280, 560 or 1120", max_soft_tokens);
}

Result<ImageSize> TargetSize(ImageSize size, PatchGrid grid, int64_t max_patches) {
  CHECK(size.height > 0 && size.width > 0);
  const double height = size.height;
  const double width = size.width;
  const int64_t cell = grid.cell();
  const int64_t max_pixels = max_patches * grid.patch * grid.patch;
  const double factor = std::sqrt(static_cast<double>(max_pixels) / (height * width));
  int64_t target_height = static_cast<int64_t>(std::floor(factor * height / cell)) * cell;
  int64_t target_width = static_cast<int64_t>(std::floor(factor * width / cell)) * cell;

  // An image that is long and thin becomes one row of cells.
  const int64_t max_side = max_patches / (grid.kernel * grid.kernel) * cell;
  if (target_height == 0 && target_width == 0) {
    return MakeError("a budget of {} patches is too small for an image of {} x {} pixels",
                     max_patches, size.height, size.width);
  }
  if (target_height == 0) {
    target_height = cell;
    target_width = std::min<int64_t>(size.width / size.height * cell, max_side);
  } else if (target_width == 0) {
    target_width = cell;
    target_height = std::min<int64_t>(size.height / size.width * cell, max_side);
  }
  if (target_height * target_width > max_pixels) {
    return MakeError("an image of {} x {} pixels would become {} x {}, more than {} patches",
                     size.height, size.width, target_height, target_width, max_patches);
  }
  return ImageSize{static_cast<int>(target_height), static_cast<int>(target_width)};
}

}  // namespace lapidary
