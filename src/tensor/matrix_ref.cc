#include "tensor/matrix_ref.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "tensor/panels.h"
#include "tensor/tensor_view.h"

namespace lapidary {
namespace {

const std::byte* After(const void* plane, int64_t bytes) {
  return plane == nullptr ? nullptr : static_cast<const std::byte*>(plane) + bytes;
}

}  // namespace

int RowsOfUnit(const WeightFormat& format) {
  int rows = 1;
  if (format.layout == WeightLayout::kPanels) rows = kPanelRows;
  if (format.layout == WeightLayout::kTiles) rows = kTileRows;
  if (format.has_scales()) rows = std::lcm(rows, format.group.rows);  // of 0, which is all: 0
  if (format.offset == OffsetType::kZeroPoint) rows = std::lcm(rows, 32 / CodeBits(format.code));
  if (format.tensor_rows != 0) rows = std::lcm(rows, format.tensor_rows);
  return rows;
}

MatrixRef MatrixRef::Rows(int first, int count) const {
  CHECK(first >= 0 && count >= 0 && first <= rows - count)
      << first << " + " << count << " of " << rows << " rows";
  MatrixRef part = *this;
  part.rows = count;
  if (first == 0) return part;
  const int unit = RowsOfUnit(format);
  // A scale that all rows share is everybody's.
  CHECK(unit == 0 || first % unit == 0)
      << "row " << first << " of " << FormatName(format) << " has no beginning of its own";
  const PlaneBytes before = BytesOf(format, first, cols);
  part.data = After(data, before.data);
  if (format.group.rows != 0) {
    part.scales = After(scales, before.scales);
    part.offsets = After(offsets, before.offsets);
  }
  if (format.tensor_rows != 0) part.tensor_scale = After(tensor_scale, before.tensor_scale);
  return part;
}

MatrixRef MatrixAt(const std::byte* memory, const WeightFormat& format, int rows, int cols) {
  const PlaneBytes bytes = BytesOf(format, rows, cols);
  MatrixRef matrix{.data = memory, .format = format, .rows = rows, .cols = cols};
  const std::byte* next = memory + bytes.data;
  const auto place = [&next](int64_t plane_bytes) -> const void* {
    if (plane_bytes == 0) return nullptr;
    const std::byte* const plane = next;
    next += plane_bytes;
    return plane;
  };
  matrix.scales = place(bytes.scales);
  matrix.offsets = place(bytes.offsets);
  matrix.tensor_scale = place(bytes.tensor_scale);
  return matrix;
}

MatrixRef MatrixOf(const TensorView& tensor) {
  CHECK(tensor.shape.size() >= 2 && tensor.shape.back() > 0) << ShapeToString(tensor.shape);
  const int64_t rows = tensor.num_elements() / tensor.shape.back();
  CHECK_LE(std::max(rows, tensor.shape.back()), std::numeric_limits<int>::max())
      << ShapeToString(tensor.shape);
  return {.data = tensor.data,
          .format = FormatOf(tensor.dtype),
          .rows = static_cast<int>(rows),
          .cols = static_cast<int>(tensor.shape.back())};
}

MatrixRef StackRows(std::initializer_list<MatrixRef> parts) {
  MatrixRef stack;
  for (const MatrixRef& part : parts) {
    if (part.data == nullptr) continue;
    if (stack.data == nullptr) {
      stack = part;
      continue;
    }
    CHECK(part.format == stack.format && part.cols == stack.cols)
        << FormatName(part.format) << " of " << part.cols << " behind " << FormatName(stack.format)
        << " of " << stack.cols;
    const int unit = RowsOfUnit(stack.format);
    CHECK(unit > 0 && stack.rows % unit == 0 && part.tensor_scale == stack.tensor_scale)
        << FormatName(stack.format) << " cannot be joined behind row " << stack.rows;
    const PlaneBytes before = stack.bytes();
    CHECK(part.data == After(stack.data, before.data) &&
          part.scales == After(stack.scales, before.scales) &&
          part.offsets == After(stack.offsets, before.offsets))
        << "a matrix that does not lie behind the others";
    stack.rows += part.rows;
  }
  return stack;
}

}  // namespace lapidary
