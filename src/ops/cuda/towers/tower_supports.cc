#include "base/result.h"
#include "ops/cuda/towers/conformer.h"
#include "ops/cuda/towers/patch_attention.h"
#include "ops/cuda/towers/tower_rows.h"

namespace lapidary::cuda {

Status TowerRowsSupports(int dim) {
  if (dim < 8 || dim % 8 != 0 || dim > kMaxTowerDim) {
    return MakeError("rows of {}, which is no multiple of 8 up to {}", dim, kMaxTowerDim);
  }
  return {};
}

Status BandAttentionSupports(int head_dim, int num_keys) {
  if (head_dim < 4 || head_dim % 4 != 0 || head_dim > 256 || num_keys < 1 || num_keys > 32) {
    return MakeError(
        "audio heads of {} dims with {} keys, not a multiple of 4 up to 256 with up to 32",
        head_dim, num_keys);
  }
  return {};
}

Status PatchHeadsSupports(int num_heads, int head_dim) {
  constexpr int kMaxValues = 2048;  // eight to a thread, two rows to a block
  if (head_dim % 8 != 0 || num_heads * head_dim > kMaxValues) {
    return MakeError("{} vision heads of {} dims, which is more than {} values in all", num_heads,
                     head_dim, kMaxValues);
  }
  return {};
}

Status PatchAttentionSupports(int head_dim) {
  if (head_dim < 8 || head_dim % 8 != 0 || PaddedHeadDim(head_dim) == 0) {
    return MakeError("vision heads of {} dims, which is no multiple of 8 up to 80", head_dim);
  }
  return {};
}

}  // namespace lapidary::cuda
