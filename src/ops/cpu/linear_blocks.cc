#include "ops/cpu/linear_blocks.h"

#include <algorithm>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear_blocks.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/sum_lanes-inl.h"
#include "ops/cpu/unpack_blocks-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

int64_t MaxRows() { return 0; }
void Columns(const float*, int64_t, const MatrixRef&, int64_t, int64_t, float*, int64_t) {
  CHECK(false) << "no vectors, no registers";
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using unpack::Floats;
using unpack::FloatVec;

constexpr int kMaxRows = 4;
int64_t MaxRows() { return kMaxRows; }

// kCols columns at once, for each is one chain of additions.
constexpr int ColumnsOf(int num_rows) { return HWY_TARGET <= HWY_AVX3 || num_rows == 1 ? 4 : 2; }

// y of kRows rows and kCols columns; w: the first column's blocks.
template <typename Format, int kRows, int kCols>
HWY_NOINLINE void Tile(const float* HWY_RESTRICT x, int64_t in, const uint8_t* HWY_RESTRICT w,
                       int64_t row_bytes, float* HWY_RESTRICT y, int64_t y_stride) {
  const Floats d;
  FloatVec acc[kRows][kCols];
  HWY_UNROLL(4) for (int row = 0; row < kRows; ++row) {
    HWY_UNROLL(4) for (int col = 0; col < kCols; ++col) acc[row][col] = hn::Zero(d);
  }
  const float* end = x + in;
  for (; x < end; w += Format::kBytes) {
    const auto block = [&](int col) { return typename Format::Block(w + col * row_bytes); };
    const typename Format::Block blocks[4] = {block(0), block(1 % kCols), block(2 % kCols),
                                              block(3 % kCols)};
    for (int piece = 0; piece < Format::kElements / Format::kPiece; ++piece) {
      HWY_UNROLL(4) for (int col = 0; col < kCols; ++col) {
        Format::Unpack(blocks[col], piece, [&](int first, FloatVec weights) {
          HWY_UNROLL(4) for (int row = 0; row < kRows; ++row) {
            const FloatVec xs = hn::LoadU(d, x + row * in + first);
            acc[row][col] = hn::MulAdd(xs, weights, acc[row][col]);
          }
        });
      }
      x += Format::kPiece;
    }
    // The blocks that the next tile has at this place: the processor's own prefetching begins anew
    // with each column.
    HWY_UNROLL(4) for (int col = 0; col < kCols; ++col) {
      constexpr int kLine = 64;
      for (int at = 0; at < Format::kBytes; at += kLine) {
        __builtin_prefetch(w + (kCols + col) * row_bytes + at, 0, 2);
      }
    }
  }
  HWY_UNROLL(4) for (int row = 0; row < kRows; ++row) {
    float sums[4];
    SumLanesOfFour(d, acc[row][0], acc[row][1 % kCols], acc[row][2 % kCols], acc[row][3 % kCols],
                   sums);
    for (int col = 0; col < kCols; ++col) y[row * y_stride + col] = sums[col];
  }
}

template <typename Format, int kRows>
void ColumnsOfRows(const float* x, const MatrixRef& w, int64_t begin, int64_t end, float* y,
                   int64_t y_stride) {
  constexpr int kCols = ColumnsOf(kRows);
  const int64_t row_bytes = w.row_bytes();
  const uint8_t* blocks = w.As<uint8_t>();
  for (; begin + kCols <= end; begin += kCols) {
    Tile<Format, kRows, kCols>(x, w.cols, blocks + begin * row_bytes, row_bytes, y + begin,
                               y_stride);
  }
  for (; begin < end; ++begin) {
    Tile<Format, kRows, 1>(x, w.cols, blocks + begin * row_bytes, row_bytes, y + begin, y_stride);
  }
}

void Columns(const float* x, int64_t rows, const MatrixRef& w, int64_t begin, int64_t end, float* y,
             int64_t y_stride) {
  unpack::WithFormat(w.format.unit, [&](auto format) {
    using Format = decltype(format);
    switch (rows) {
      case 1:
        return ColumnsOfRows<Format, 1>(x, w, begin, end, y, y_stride);
      case 2:
        return ColumnsOfRows<Format, 2>(x, w, begin, end, y, y_stride);
      case 3:
        return ColumnsOfRows<Format, 3>(x, w, begin, end, y, y_stride);
      default:
        CHECK_EQ(rows, kMaxRows);
        return ColumnsOfRows<Format, kMaxRows>(x, w, begin, end, y, y_stride);
    }
  });
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(MaxRows);
HWY_EXPORT(Columns);

int64_t MaxRowsInRegisters() { return HWY_DYNAMIC_DISPATCH(MaxRows)(); }

void LinearInRegisters(const float* x, int64_t rows, const MatrixRef& w, int64_t begin, int64_t end,
                       float* y, int64_t y_stride) {
  if (rows > 0) HWY_DYNAMIC_DISPATCH(Columns)(x, rows, w, begin, end, y, y_stride);
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
