#include "ops/cpu/per_layer_inputs.h"

#include <cmath>

#include "ops/cpu/elementwise.h"

namespace lapidary::cpu {

void MakePerLayerInputsRow(const MatrixRef& table, int64_t token, std::span<const float> norm,
                           float eps, int64_t hidden, float* projected, float* inputs) {
  const int64_t columns = table.cols;
  const int64_t width = static_cast<int64_t>(norm.size());
  GatherRow(table, token, std::sqrt(static_cast<float>(width)), inputs);
  Scale(projected, 1.0f / std::sqrt(static_cast<float>(hidden)), columns, projected);
  for (int64_t begin = 0; begin < columns; begin += width) {
    RmsNorm(projected + begin, norm.data(), eps, width, projected + begin);
  }
  MulAddTo(projected, 1.0f, columns, inputs);
  Scale(inputs, 1.0f / std::sqrt(2.0f), columns, inputs);
}

}  // namespace lapidary::cpu
