// Per-layer embeddings of one token: what every layer's gate will multiply.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/matrix_ref.h"

namespace lapidary::cpu {

// inputs_l = (rmsnorm(projected_l / sqrt(hidden); norm) + sqrt(width) * table[token]_l) / sqrt(2)
// for every slice l of `width` = norm.size() values.
//   table [tokens, layers * width];  inputs [layers * width]
//   projected [layers * width]: the projection of the token's scaled embedding [hidden];
//   overwritten
void MakePerLayerInputsRow(const MatrixRef& table, int64_t token, std::span<const float> norm,
                           float eps, int64_t hidden, float* projected, float* inputs);

}  // namespace lapidary::cpu
