// Descriptions of matrices for TMA.
#pragma once

#include <cuda.h>

#include "ops/cuda/launch.h"

namespace lapidary::cuda {

// A bf16 matrix [rows, columns], copied in boxes of `box_rows` x 64 values with the 128-byte
// swizzle that wgmma reads. columns must be a multiple of 8, the address of 16. Host work only; the
// map goes to a kernel as a __grid_constant__ parameter, so a graph keeps its own copy.
CUtensorMap MakeSwizzledMap(const bf16* matrix, int rows, int columns, int box_rows);

// The same matrix as [columns / 64, rows, 64], copied in boxes of box_chunks x box_rows x 64: a
// wide piece of some rows in one copy. columns must be a multiple of 64.
CUtensorMap MakeChunkedMap(const bf16* matrix, int rows, int columns, int box_rows, int box_chunks);

// A matrix of quantised weights (tensor/weight_tiles.h) as [stripes, stripe_bytes], copied in boxes
// of box_stripes x box_bytes, at most 2,048, as they are in memory. Columns of CopyBox are then
// words of 8 bytes.
CUtensorMap MakeStripeMap(const void* tiles, int num_stripes, int stripe_bytes, int box_stripes,
                          int box_bytes);

// Matrices of experts [experts, halves * rows, columns], copied in boxes of 128 rows of one expert
// x 64 values: with two halves (gate and up) eight rows of the one, then eight of the other. rows
// and columns must be multiples of 8.
CUtensorMap MakeExpertMap(const bf16* matrices, int experts, int halves, int rows, int columns);

}  // namespace lapidary::cuda
