// A matrix of weights that somebody else owns, on the host or on a device.
//
// More than a pointer, so that whoever multiplies with it can see its format and shape; less than a
// TensorView: two dims and no allocation, so that kernels take it by value. Row-major, rows of
// whole blocks of the format (dtype.h) directly behind each other. Matrices of one shape that are
// used together (the experts of a layer) are one matrix with the rows of all.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "tensor/dtype.h"

namespace lapidary {

struct TensorView;

struct MatrixRef {
  const void* data = nullptr;  // null: there is no such matrix
  DType dtype = DType::kBF16;
  int rows = 0;
  int cols = 0;
  // Of formats that keep scales beside the values (fp8); null for those that have none, or have
  // them in their blocks.
  const void* scales = nullptr;

  int64_t row_bytes() const { return DTypeBytes(dtype, cols); }
  int64_t num_bytes() const { return rows * row_bytes(); }
  template <typename T>
  const T* As() const {
    return static_cast<const T*>(data);
  }

  // Rows [first, first + count).
  MatrixRef Rows(int first, int count) const;
};

// The last dim is a row.
MatrixRef MatrixOf(const TensorView& tensor);

// Matrices that lie directly behind each other in memory as the one they form: [q; k; v]. Those
// without data are left out.
MatrixRef StackRows(std::initializer_list<MatrixRef> parts);

}  // namespace lapidary
