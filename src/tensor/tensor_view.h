// A tensor somebody else owns: pointer, type and shape, row-major and contiguous. Rows (along the
// last dim) are whole blocks of the type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace lapidary {

struct TensorView {
  const std::byte* data = nullptr;  // aligned to the element size, where there is one
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t num_elements() const {
    int64_t count = 1;
    for (int64_t dim : shape) count *= dim;
    return count;
  }
  int64_t num_bytes() const;
  template <typename T>
  const T* As() const {
    return reinterpret_cast<const T*>(data);
  }
};

// "[128, 1408, 2816]"
std::string ShapeToString(const std::vector<int64_t>& shape);

// The elements of an F32, F16, BF16 or block-format tensor as floats.
std::vector<float> ToFloats(const TensorView& tensor);

}  // namespace lapidary
