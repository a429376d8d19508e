#include "tensor/stack_parts.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace lapidary {
namespace {

bool HasTensorScale(ScaleType scale) {
  return scale == ScaleType::kE4M3TimesTensors || scale == ScaleType::kE4M3OverTensors;
}

// The grid of a part's scales, row by row as many times as the one matrix has rows of them.
void StackScales(const MatrixRef& part, const WeightFormat& to, std::byte* scales) {
  const ScaleGrid from = ScaleGridOf(part.format, part.rows, part.cols);
  const int64_t row_bytes = from.cols * ScaleBytes(to.scale);
  const int from_rows = part.format.group.rows == 0 ? part.rows : part.format.group.rows;
  for (int64_t row = 0; row < part.rows; row += to.group.rows, scales += row_bytes) {
    std::memcpy(scales, static_cast<const std::byte*>(part.scales) + row / from_rows * row_bytes,
                static_cast<size_t>(row_bytes));
  }
}

}  // namespace

std::optional<WeightFormat> StackedFormat(std::span<const MatrixRef> parts) {
  const MatrixRef& first = parts.front();
  WeightFormat format = first.format;
  if (!format.is_float_codes()) return std::nullopt;
  const bool agree = std::all_of(parts.begin(), parts.end(), [&](const MatrixRef& part) {
    return part.format == format && part.rows == first.rows && part.cols == first.cols;
  });
  if (!agree || first.rows == 0) return std::nullopt;
  if (parts.size() == 1) return format;
  format.group.rows = std::gcd(format.group.rows, first.rows);  // of 0, which is all: all
  if (HasTensorScale(format.scale)) format.tensor_rows = first.rows;
  return format;
}

void StackPart(const MatrixRef& part, int64_t begin, int64_t end, const WeightFormat& to,
               int64_t first_row, int64_t to_rows, std::byte* memory) {
  CHECK(0 <= begin && begin <= end && end <= part.rows) << begin << " to " << end;
  CHECK(first_row % part.rows == 0 && first_row + part.rows <= to_rows)
      << first_row << " of " << to_rows;
  const int64_t row_bytes = part.row_bytes();
  std::memcpy(memory + (first_row + begin) * row_bytes, part.As<std::byte>() + begin * row_bytes,
              static_cast<size_t>((end - begin) * row_bytes));
  if (begin != 0) return;
  const PlaneBytes whole = BytesOf(to, to_rows, part.cols);
  const PlaneBytes before = BytesOf(to, first_row, part.cols);
  const PlaneBytes own = part.bytes();
  std::byte* const scales = memory + whole.data;
  if (to.group.rows == part.format.group.rows) {
    std::memcpy(scales + before.scales, part.scales, static_cast<size_t>(own.scales));
  } else {
    StackScales(part, to, scales + before.scales);
  }
  if (own.tensor_scale == 0) return;
  const int64_t tensor_before = to.tensor_rows == 0 ? 0 : before.tensor_scale;
  std::memcpy(scales + whole.scales + tensor_before, part.tensor_scale,
              static_cast<size_t>(own.tensor_scale));
}

}  // namespace lapidary
