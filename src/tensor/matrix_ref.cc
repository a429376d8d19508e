#include "tensor/matrix_ref.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/check.h"
#include "tensor/tensor_view.h"

namespace lapidary {
namespace {

const std::byte* End(const MatrixRef& matrix) {
  return matrix.As<std::byte>() + matrix.num_bytes();
}

}  // namespace

MatrixRef MatrixRef::Rows(int first, int count) const {
  CHECK(first >= 0 && count >= 0 && first <= rows - count)
      << first << " + " << count << " of " << rows << " rows";
  CHECK(scales == nullptr) << "no format whose scales can be cut";
  MatrixRef part = *this;
  part.data = As<std::byte>() + first * row_bytes();
  part.rows = count;
  return part;
}

MatrixRef MatrixOf(const TensorView& tensor) {
  CHECK(tensor.shape.size() >= 2 && tensor.shape.back() > 0) << ShapeToString(tensor.shape);
  const int64_t rows = tensor.num_elements() / tensor.shape.back();
  CHECK_LE(std::max(rows, tensor.shape.back()), std::numeric_limits<int>::max())
      << ShapeToString(tensor.shape);
  return {.data = tensor.data,
          .dtype = tensor.dtype,
          .rows = static_cast<int>(rows),
          .cols = static_cast<int>(tensor.shape.back())};
}

MatrixRef StackRows(std::initializer_list<MatrixRef> parts) {
  MatrixRef stack;
  for (const MatrixRef& part : parts) {
    if (part.data == nullptr) continue;
    CHECK(part.scales == nullptr) << "no format whose scales can be joined";
    if (stack.data == nullptr) {
      stack = part;
      continue;
    }
    CHECK(part.dtype == stack.dtype && part.cols == stack.cols)
        << DTypeName(part.dtype) << " of " << part.cols << " behind " << DTypeName(stack.dtype)
        << " of " << stack.cols;
    CHECK(part.data == End(stack)) << "a matrix that does not lie behind the others";
    stack.rows += part.rows;
  }
  return stack;
}

}  // namespace lapidary
