#include "ops/cpu/linear_codes.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "ops/cpu/code_scales.h"
#include "ops/cpu/thread_buffer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear_codes.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/sum_lanes-inl.h"
#include "ops/cpu/unpack_codes-inl.h"
// clang-format on

#ifndef LAPIDARY_OPS_CPU_LINEAR_CODES
#define LAPIDARY_OPS_CPU_LINEAR_CODES
namespace lapidary::cpu {

inline thread_local ThreadBuffer<float> code_scales;  // of some rows of weights

}  // namespace lapidary::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void CodeColumns(const float*, int64_t, const MatrixRef&, int64_t, int64_t, float*, int64_t) {
  CHECK(false) << "no vectors, no registers";
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using codes::Floats;
using codes::FloatVec;

constexpr int kMaxRows = 4;
constexpr int64_t kLine = 64;

// kCols columns at once, for each is one chain of additions.
constexpr int CodeColumnsOf(int num_rows) {
  return HWY_TARGET <= HWY_AVX3 || num_rows == 1 ? 4 : 2;
}

// Where the scales of a tile's columns are: of column `col`, run `run` of kLen columns.
struct E4M3Scales {
  int64_t run_len;  // of every row, but for its end
  int64_t num_runs;
  const float* scales;  // [cols, num_runs]
  HWY_INLINE FloatVec Of(int col, int64_t run) const {
    return hn::Set(Floats(), scales[col * num_runs + run]);
  }
};
struct E2M1Scales {
  static constexpr int64_t run_len = kCodePiece;
  int64_t num_runs;
  const uint8_t* scales;  // [cols, num_runs]
  const float* values;    // by scale
  HWY_INLINE FloatVec Of(int col, int64_t run) const {
    return hn::Set(Floats(), values[scales[col * num_runs + run]]);
  }
};

// y of kRows rows and kCols columns; w: the first column's codes.
template <typename Codes, int kRows, int kCols, typename Scales>
HWY_NOINLINE void CodeTile(const float* HWY_RESTRICT x, int64_t in, const uint8_t* HWY_RESTRICT w,
                           const Scales& scales, float* HWY_RESTRICT y, int64_t y_stride) {
  const Floats d;
  const int64_t row_bytes = in / kCodePiece * Codes::kBytes;
  constexpr int64_t kLineCols = kLine / Codes::kBytes * kCodePiece;
  FloatVec acc[kRows][kCols];
  HWY_UNROLL(4) for (int row = 0; row < kRows; ++row) {
    HWY_UNROLL(4) for (int col = 0; col < kCols; ++col) acc[row][col] = hn::Zero(d);
  }
  FloatVec scale[kCols];
  // The codes that the next tile has at this place: the processor's own prefetching begins anew
  // with each column.
  const auto prefetch = [&] {
    HWY_UNROLL(4) for (int col = 0; col < kCols; ++col) {
      __builtin_prefetch(w + (kCols + col) * row_bytes, 0, 2);
    }
  };
  const auto piece = [&] {
    HWY_UNROLL(4) for (int col = 0; col < kCols; ++col) {
      Codes::Unpack(w + col * row_bytes, scale[col], [&](int first, FloatVec weights) {
        HWY_UNROLL(4) for (int row = 0; row < kRows; ++row) {
          const FloatVec xs = hn::LoadU(d, x + row * in + first);
          acc[row][col] = hn::MulAdd(xs, weights, acc[row][col]);
        }
      });
    }
    w += Codes::kBytes;
    x += kCodePiece;
  };
  const auto set_scales = [&](int64_t run) {
    HWY_UNROLL(4) for (int col = 0; col < kCols; ++col) scale[col] = scales.Of(col, run);
  };
  if constexpr (std::is_same_v<Codes, codes::E2M1>) {
    for (int64_t run = 0; run < scales.num_runs; ++run) {
      if (run * kCodePiece % kLineCols == 0) prefetch();
      set_scales(run);
      piece();
    }
  } else {
    int64_t left = in;
    for (int64_t run = 0; run < scales.num_runs; ++run) {
      set_scales(run);
      int64_t run_left = std::min(scales.run_len, left);
      left -= run_left;
      for (; run_left >= kLineCols; run_left -= kLineCols) {
        prefetch();
        for (int idx = 0; idx < kLineCols / kCodePiece; ++idx) piece();
      }
      for (; run_left > 0; run_left -= kCodePiece) piece();
    }
  }
  x -= in;
  HWY_UNROLL(4) for (int row = 0; row < kRows; ++row) {
    float sums[4];
    SumLanesOfFour(d, acc[row][0], acc[row][1 % kCols], acc[row][2 % kCols], acc[row][3 % kCols],
                   sums);
    for (int col = 0; col < kCols; ++col) y[row * y_stride + col] = sums[col];
  }
}

// FP8. Scales of kCols columns are made at a time.
template <int kRows, int kCols>
void E4M3Tile(const float* x, const MatrixRef& w, int64_t col, float* y, int64_t y_stride) {
  const int64_t in = w.cols;
  const int64_t num_runs = NumScales(w);
  float* const scales = code_scales.Get(kCols * num_runs);
  for (int idx = 0; idx < kCols; ++idx) LoadScales(w, col + idx, scales + idx * num_runs);
  for (int64_t idx = 0; idx < kCols * num_runs; ++idx) scales[idx] *= codes::E4M3::kScaleUnit;
  const uint8_t* const bytes = w.As<uint8_t>() + col * in;
  const int64_t run_len = w.format.group.cols == 0 ? in : w.format.group.cols;
  CodeTile<codes::E4M3, kRows, kCols>(x, in, bytes, E4M3Scales{run_len, num_runs, scales}, y + col,
                                      y_stride);
  for (int idx = 0; idx < kCols; ++idx) {
    if (!codes::HasNan(bytes + idx * in, in)) continue;
    for (int row = 0; row < kRows; ++row) {
      y[row * y_stride + col + idx] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

template <int kRows, int kCols>
void E2M1Tile(const float* x, const MatrixRef& w, const ScaleTable& table, int64_t col, float* y,
              int64_t y_stride) {
  const int64_t num_runs = w.cols / kCodePiece;
  const E2M1Scales scales{num_runs, static_cast<const uint8_t*>(w.scales) + col * num_runs,
                          table.data()};
  CodeTile<codes::E2M1, kRows, kCols>(x, w.cols, w.As<uint8_t>() + col * w.row_bytes(), scales,
                                      y + col, y_stride);
}

template <int kRows>
void CodeColumnsOfRows(const float* x, const MatrixRef& w, int64_t begin, int64_t end, float* y,
                       int64_t y_stride) {
  constexpr int kCols = CodeColumnsOf(kRows);
  if (w.format.code == CodeType::kE4M3) {
    for (; begin + kCols <= end; begin += kCols) E4M3Tile<kRows, kCols>(x, w, begin, y, y_stride);
    for (; begin < end; ++begin) E4M3Tile<kRows, 1>(x, w, begin, y, y_stride);
    return;
  }
  ScaleTable table;
  while (begin < end) {
    const int64_t tensor_end = begin + RowsOfTable(w, begin, end);
    MakeScaleTable(w, begin, table);
    for (; begin + kCols <= tensor_end; begin += kCols) {
      E2M1Tile<kRows, kCols>(x, w, table, begin, y, y_stride);
    }
    for (; begin < tensor_end; ++begin) E2M1Tile<kRows, 1>(x, w, table, begin, y, y_stride);
  }
}

void CodeColumns(const float* x, int64_t rows, const MatrixRef& w, int64_t begin, int64_t end,
                 float* y, int64_t y_stride) {
  switch (rows) {
    case 1:
      return CodeColumnsOfRows<1>(x, w, begin, end, y, y_stride);
    case 2:
      return CodeColumnsOfRows<2>(x, w, begin, end, y, y_stride);
    case 3:
      return CodeColumnsOfRows<3>(x, w, begin, end, y, y_stride);
    default:
      CHECK_EQ(rows, kMaxRows);
      return CodeColumnsOfRows<kMaxRows>(x, w, begin, end, y, y_stride);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(CodeColumns);

void LinearCodes(const float* x, int64_t rows, const MatrixRef& w, int64_t begin, int64_t end,
                 float* y, int64_t y_stride) {
  CHECK(HasCodePieces(w)) << FormatName(w.format) << " of " << w.cols << " columns";
  if (rows > 0) HWY_DYNAMIC_DISPATCH(CodeColumns)(x, rows, w, begin, end, y, y_stride);
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
