// Values of one row of a matrix of weights, in any format, for kernels that gather rows.
#pragma once

#include "ops/cuda/linear/weight_tile.cuh"
#include "ops/cuda/vec.cuh"
#include "tensor/matrix_ref.h"

namespace lapidary::cuda {

// Columns at .. at + 7 of a row, exactly; `at` is a multiple of 8. `type`: TileTypeOf(weights).
__device__ __forceinline__ void LoadRow8(const MatrixRef& weights, TileType type, int64_t row,
                                         int at, float (&values)[8]) {
  const void* data = weights.data;
  const int cols = weights.cols;
  switch (type) {
    case TileType::kBf16:
      return Load8(static_cast<const bf16*>(data) + row * cols + at, values);
    case TileType::kU4F16:
      return WeightTile<TileType::kU4F16>::LoadRow8(data, row, cols, at, values);
    case TileType::kU4Bf16:
      return WeightTile<TileType::kU4Bf16>::LoadRow8(data, row, cols, at, values);
    case TileType::kS8F16:
      return WeightTile<TileType::kS8F16>::LoadRow8(data, row, cols, at, values);
    case TileType::kS8Bf16:
      return WeightTile<TileType::kS8Bf16>::LoadRow8(data, row, cols, at, values);
  }
}

}  // namespace lapidary::cuda
