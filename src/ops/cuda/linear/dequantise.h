// Tiled weights (tensor/weight_tiles.h) as the bf16 matrix that products of many rows multiply
// with.
#pragma once

#include "ops/cuda/launch.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cuda {

// out [rows, cols] bf16, each weight's exact value rounded once. `weights` may be read before the
// kernel before is done, `out` is written after. Reference: UnpackTileRow.
void RunDequantise(const LaunchContext& context, const MatrixRef& weights, bf16* out);

}  // namespace lapidary::cuda
