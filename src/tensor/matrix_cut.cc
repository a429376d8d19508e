#include "tensor/matrix_cut.h"

#include <cstring>
#include <numeric>

#include "base/check.h"

namespace lapidary {
namespace {

constexpr int64_t kAlign = 64;

int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }
int CeilDiv(int value, int divisor) { return (value + divisor - 1) / divisor; }

// Codes in a unit of `data`, where it holds several of them.
int PackedCodes(const WeightFormat& format) {
  if (format.has_dtype()) return 1;
  return std::max(8 * DTypeSize(format.unit) / CodeBits(format.code), 1);
}

// Codes of consecutive rows in a word of zero points.
int PackedRows(const WeightFormat& format) {
  return format.offset == OffsetType::kZeroPoint ? 32 / CodeBits(format.code) : 1;
}

// Scales, or words of offsets, that belong to a range of rows or columns; 0 of a unit: all share
// one.
IndexRange InUnits(IndexRange range, int unit) {
  if (unit == 0) return {0, 1};
  return {range.begin / unit, CeilDiv(range.end, unit)};
}

// A plane that a matrix has beside its codes, [rows, cols] of values.
struct Plane {
  const std::byte* data;
  int64_t row_bytes;
  int64_t value_bytes;
};

std::byte* CopyPlane(const Plane& from, IndexRange rows, IndexRange cols, std::byte* to) {
  const int64_t bytes = cols.count() * from.value_bytes;
  for (int row = rows.begin; row < rows.end; ++row, to += bytes) {
    std::memcpy(to, from.data + row * from.row_bytes + cols.begin * from.value_bytes,
                static_cast<size_t>(bytes));
  }
  return to;
}

std::byte* Writable(const void* plane) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(plane));
}

}  // namespace

CutUnit CutUnitOf(const WeightFormat& format) {
  CHECK(format.layout == WeightLayout::kRowMajor || format.layout == WeightLayout::kBlocks)
      << FormatName(format);
  if (format.is_plain()) return {};
  if (format.layout == WeightLayout::kBlocks) return {1, BlockOf(format.unit).elements};
  return {std::lcm(std::max(format.group.rows, 1), PackedRows(format)),
          std::lcm(std::max(format.group.cols, 1), PackedCodes(format))};
}

Result<MatrixCopy> MatrixCopy::Allocate(const WeightFormat& format, int rows, int cols,
                                        const void* tensor_scale) {
  MatrixCopy copy;
  const PlaneBytes bytes = BytesOf(format, rows, cols);
  const int64_t scales_at = RoundUp(bytes.data, kAlign);
  const int64_t offsets_at = scales_at + RoundUp(bytes.scales, kAlign);
  const int64_t total = offsets_at + RoundUp(bytes.offsets, kAlign);
  copy.memory_.reset(
      static_cast<std::byte*>(std::aligned_alloc(kAlign, static_cast<size_t>(total))));
  if (copy.memory_ == nullptr) {
    return MakeError("no memory for {:.2f} GB of a matrix's part",
                     1e-9 * static_cast<double>(total));
  }
  copy.matrix_ = {.data = copy.memory_.get(),
                  .format = format,
                  .rows = rows,
                  .cols = cols,
                  .scales = bytes.scales > 0 ? copy.memory_.get() + scales_at : nullptr,
                  .offsets = bytes.offsets > 0 ? copy.memory_.get() + offsets_at : nullptr,
                  .tensor_scale = tensor_scale};
  return copy;
}

void MatrixCopy::Append(const MatrixRef& from, IndexRange rows, IndexRange cols,
                        ThreadPool& threads) {
  const CutUnit unit = CutUnitOf(from.format);
  CHECK(from.format == matrix_.format && cols.count() == matrix_.cols);
  CHECK(num_appended_ + rows.count() <= matrix_.rows && rows.end <= from.rows &&
        cols.end <= from.cols);
  CHECK(rows.begin % unit.rows == 0 && num_appended_ % unit.rows == 0) << rows.begin;
  CHECK_EQ(cols.begin % unit.cols, 0);

  const int64_t row_bytes = RowBytes(from.format, cols.count());
  const int64_t stored_row_bytes = RowBytes(from.format, from.cols);
  const std::byte* codes = from.As<std::byte>() + RowBytes(from.format, cols.begin);
  std::byte* to = Writable(matrix_.data) + num_appended_ * row_bytes;
  constexpr int64_t kRowsAtOnce = 64;
  threads.ParallelFor(rows.count(), kRowsAtOnce, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(to + row * row_bytes, codes + (rows.begin + row) * stored_row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  });

  const WeightGroup& group = from.format.group;
  // A scale that all rows share came with the first of them.
  const bool has_own_scales = group.rows != 0 || num_appended_ == 0;
  if (matrix_.scales != nullptr && has_own_scales) {
    const PlaneBytes before = BytesOf(matrix_.format, num_appended_, matrix_.cols);
    const int64_t scale_bytes = ScaleBytes(from.format.scale);
    const int64_t grid_cols = ScaleGridOf(from.format, from.rows, from.cols).cols;
    const IndexRange scale_cols = InUnits(cols, group.cols);
    CopyPlane({static_cast<const std::byte*>(from.scales), grid_cols * scale_bytes, scale_bytes},
              InUnits(rows, group.rows), scale_cols,
              Writable(matrix_.scales) + (num_appended_ == 0 ? 0 : before.scales));
    if (matrix_.offsets != nullptr) {
      constexpr int64_t kWord = 4;
      CopyPlane({static_cast<const std::byte*>(from.offsets), grid_cols * kWord, kWord},
                InUnits(rows, PackedRows(from.format)), scale_cols,
                Writable(matrix_.offsets) + (num_appended_ == 0 ? 0 : before.offsets));
    }
  }
  num_appended_ += rows.count();
}

const MatrixRef& MatrixCopy::matrix() const {
  CHECK_EQ(num_appended_, matrix_.rows);
  return matrix_;
}

}  // namespace lapidary
