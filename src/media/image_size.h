// The size an image is resized to before it is cut into patches, and how many tokens it becomes.
#pragma once

#include "base/result.h"

namespace lapidary {

// Where a checkpoint says nothing.
inline constexpr int kDefaultSoftTokens = 280;

// What a budget of soft tokens per image may be: 70, 140, 280, 560 or 1120.
Status CheckSoftTokenBudget(int max_soft_tokens);

// Patches of `patch` pixels squared, pooled in cells of `kernel` squared; a cell is a soft token.
struct PatchGrid {
  int patch = 16;
  int kernel = 3;

  int cell() const { return patch * kernel; }  // pixels
};

struct ImageSize {
  int height = 0;
  int width = 0;
  bool operator==(const ImageSize&) const = default;
};

// The largest size of about the same aspect ratio with whole cells and at most `max_patches`
// patches. Small images are enlarged.
Result<ImageSize> TargetSize(ImageSize size, PatchGrid grid, int64_t max_patches);

// Both sides must be whole cells.
inline int NumSoftTokens(ImageSize size, PatchGrid grid) {
  return (size.height / grid.cell()) * (size.width / grid.cell());
}

}  // namespace lapidary
