// Synthetic weights made where they are used.
#pragma once

#include <cstdint>

#include "model/synthetic_law.h"
#include "ops/cuda/launch.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cuda {

// to[i] = element i of the law, rounded to bf16: bit for bit what the host makes.
void RunFillSynthetic(const LaunchContext& context, const SyntheticLaw& law, int64_t count,
                      bf16* to);

// A tiled matrix of the same deviation: any codes, scales that differ a little. `tiles` says the
// format and shape.
void RunFillTiles(const LaunchContext& context, const SyntheticLaw& law, const MatrixRef& tiles,
                  void* to);

// The same of a matrix in blocks of Q8_0.
void RunFillBlocks(const LaunchContext& context, const SyntheticLaw& law, const MatrixRef& blocks,
                   void* to);

}  // namespace lapidary::cuda
