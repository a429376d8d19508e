// A description for TMA (tensor_map.h) of rows of 32 bytes.
#pragma once

#include <cuda.h>

#include "ops/cuda/launch.h"

namespace lapidary::cuda {

// A bf16 matrix [rows, 16], copied in boxes of `box_rows` rows with the 32-byte swizzle.
CUtensorMap MakeNarrowMap(const bf16* matrix, int rows, int box_rows);

}  // namespace lapidary::cuda
