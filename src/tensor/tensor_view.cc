#include "tensor/tensor_view.h"

#include <fmt/format.h>

#include "base/check.h"
#include "tensor/block_formats.h"

namespace lapidary {

int64_t TensorView::num_bytes() const {
  CHECK_EQ((shape.empty() ? 1 : shape.back()) % BlockOf(dtype).elements, 0)
      << DTypeName(dtype) << " " << ShapeToString(shape);
  return DTypeBytes(dtype, num_elements());
}

std::string ShapeToString(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::vector<float> ToFloats(const TensorView& tensor) {
  std::vector<float> values(tensor.num_elements());
  if (IsBlockDType(tensor.dtype)) {
    Dequantise(tensor.dtype, tensor.data, tensor.num_elements(), values.data());
    return values;
  }
  CHECK(IsWeightDType(tensor.dtype)) << DTypeName(tensor.dtype);
  for (size_t idx = 0; idx < values.size(); ++idx) {
    if (tensor.dtype == DType::kF32) {
      values[idx] = tensor.As<float>()[idx];
    } else {
      const uint16_t bits = tensor.As<uint16_t>()[idx];
      values[idx] = tensor.dtype == DType::kBF16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
    }
  }
  return values;
}

}  // namespace lapidary
