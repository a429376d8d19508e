// A matrix of weights that somebody else owns, on the host or on a device.
//
// More than a pointer, so that whoever multiplies with it can see its format and shape; less than a
// TensorView: two dims and no allocation, so that kernels take it by value. Rows lie directly
// behind each other. Matrices of one shape that are used together (the experts of a layer) are one
// matrix with the rows of all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "tensor/weight_format.h"

namespace lapidary {

struct TensorView;

// Matrices of a format can be cut and joined at multiples of so many rows. 0: nowhere.
int RowsOfUnit(const WeightFormat& format);

struct MatrixRef {
  const void* data = nullptr;  // null: there is no such matrix
  WeightFormat format{};
  int rows = 0;
  int cols = 0;
  // Planes of formats that keep scales (ScaleGridOf) and offsets apart; null in all others.
  const void* scales = nullptr;
  const void* offsets = nullptr;
  // Of formats with kE4M3TimesTensors or kE4M3OverTensors, an f32 or one for each `tensor_rows`.
  const void* tensor_scale = nullptr;

  int64_t row_bytes() const { return RowBytes(format, cols); }
  PlaneBytes bytes() const { return BytesOf(format, rows, cols); }
  template <typename T>
  const T* As() const {
    return static_cast<const T*>(data);
  }

  // Rows [first, first + count). `first` begins a group of rows with scales of their own (and a
  // panel, a tile, or a word of packed zero points).
  MatrixRef Rows(int first, int count) const;
};

// The last dim is a row.
MatrixRef MatrixOf(const TensorView& tensor);

// A matrix whose planes lie behind each other from `memory` on: BytesOf(...).total() bytes.
MatrixRef MatrixAt(const std::byte* memory, const WeightFormat& format, int rows, int cols);

// Matrices that lie directly behind each other in memory, planes of scales and offsets too, as the
// one they form: [q; k; v]. Those without data are left out.
MatrixRef StackRows(std::initializer_list<MatrixRef> parts);

}  // namespace lapidary
