// Descriptions of matrices for the copy engine.
#pragma once

#include <cuda.h>

#include "ops/cuda/launch.h"

namespace lapidary::cuda {

// A bf16 matrix [rows, columns], copied in boxes of `box_rows` x 64 values with the 128-byte
// swizzle that wgmma reads. columns must be a multiple of 8, the address of 16. Host work only; the
// map goes to a kernel as a __grid_constant__ parameter, so a graph keeps its own copy.
CUtensorMap MakeSwizzledMap(const bf16* matrix, int rows, int columns, int box_rows);

}  // namespace lapidary::cuda
