#include "ops/cpu/linear.h"

#include <algorithm>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;

// Tiles of kTileRows x kTileCols accumulators: 6 x 4 fill AVX-512's 32 registers together with the
// four weight vectors; machines with 16 registers take 2 x 4.
constexpr int kTileRows = HWY_TARGET <= HWY_AVX3 ? 6 : 2;
constexpr int kTileCols = 4;

HWY_INLINE FloatVec LoadWeights(Floats d, const float* w) { return hn::LoadU(d, w); }
HWY_INLINE FloatVec LoadWeights(Floats d, const hwy::bfloat16_t* w) {
  const hn::Rebind<hwy::bfloat16_t, Floats> half;
  return hn::PromoteTo(d, hn::LoadU(half, w));
}
HWY_INLINE FloatVec LoadWeights(Floats d, const hwy::float16_t* w) {
  const hn::Rebind<hwy::float16_t, Floats> half;
  return hn::PromoteTo(d, hn::LoadU(half, w));
}

// Highway 1.0.7 hides the bits of its 16-bit floats, so they are copied out.
template <typename Half>
HWY_INLINE uint16_t HalfBits(const Half* w) {
  uint16_t bits;
  hwy::CopySameSize(w, &bits);
  return bits;
}
HWY_INLINE float WidenOne(const float* w) { return *w; }
HWY_INLINE float WidenOne(const hwy::bfloat16_t* w) { return Bf16ToFloat(HalfBits(w)); }
HWY_INLINE float WidenOne(const hwy::float16_t* w) { return F16ToFloat(HalfBits(w)); }

// One tile of outputs. Each element has one accumulator vector that walks `in` from 0 upwards, is
// summed across lanes, then takes the remainder one by one: the same chain for every tile shape.
template <typename W, int kRows, int kCols>
HWY_INLINE void Tile(const float* HWY_RESTRICT x, int64_t in, const W* HWY_RESTRICT w,
                     float* HWY_RESTRICT y, int64_t y_stride) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  FloatVec acc[kRows][kCols];
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < kCols; ++col) acc[row][col] = hn::Zero(d);
  }
  int64_t k = 0;
  for (; k + lanes <= in; k += lanes) {
    FloatVec weights[kCols];
    for (int col = 0; col < kCols; ++col) {
      weights[col] = LoadWeights(d, w + col * in + k);
      // The next tile's weights at the same depth, for the processor's own prefetching begins anew
      // with every row of weights. Behind the last tile nothing is read: a prefetch cannot fault.
      __builtin_prefetch(w + (kCols + col) * in + k);
    }
    for (int row = 0; row < kRows; ++row) {
      const FloatVec xs = hn::LoadU(d, x + row * in + k);
      for (int col = 0; col < kCols; ++col) {
        acc[row][col] = hn::MulAdd(xs, weights[col], acc[row][col]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < kCols; ++col) {
      float sum = hn::GetLane(hn::SumOfLanes(d, acc[row][col]));
      for (int64_t tail = k; tail < in; ++tail) {
        sum += x[row * in + tail] * WidenOne(w + col * in + tail);
      }
      y[row * y_stride + col] = sum;
    }
  }
}

template <typename W, int kCols>
HWY_INLINE void RowRemainder(const float* x, int64_t rows, int64_t in, const W* w, float* y,
                             int64_t y_stride) {
  switch (rows) {
    case 1:
      return Tile<W, 1, kCols>(x, in, w, y, y_stride);
    case 2:
      return Tile<W, 2, kCols>(x, in, w, y, y_stride);
    case 3:
      return Tile<W, 3, kCols>(x, in, w, y, y_stride);
    case 4:
      return Tile<W, 4, kCols>(x, in, w, y, y_stride);
    case 5:
      return Tile<W, 5, kCols>(x, in, w, y, y_stride);
    default:
      return;
  }
}

template <typename W, int kCols>
void ColumnTile(const float* x, int64_t rows, int64_t in, const W* w, float* y, int64_t y_stride) {
  int64_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) {
    Tile<W, kTileRows, kCols>(x + row * in, in, w, y + row * y_stride, y_stride);
  }
  RowRemainder<W, kCols>(x + row * in, rows - row, in, w, y + row * y_stride, y_stride);
}

template <typename W>
void Columns(const float* x, int64_t rows, int64_t in, const W* w, int64_t out_begin,
             int64_t out_end, float* y, int64_t y_stride) {
  // Rows are taken in blocks that stay in the second-level cache while the weights stream past.
  constexpr int64_t kBlockBytes = 256 << 10;
  int64_t block_rows = std::max<int64_t>(kBlockBytes / (in * 4), 4 * kTileRows);
  block_rows = block_rows / kTileRows * kTileRows;
  for (int64_t row = 0; row < rows; row += block_rows) {
    const int64_t count = std::min(block_rows, rows - row);
    const float* xs = x + row * in;
    float* ys = y + row * y_stride;
    int64_t col = out_begin;
    for (; col + kTileCols <= out_end; col += kTileCols) {
      ColumnTile<W, kTileCols>(xs, count, in, w + col * in, ys + col, y_stride);
    }
    for (; col < out_end; ++col) {
      ColumnTile<W, 1>(xs, count, in, w + col * in, ys + col, y_stride);
    }
  }
}

void ColumnsBf16(const float* x, int64_t rows, int64_t in, const std::byte* w, int64_t out_begin,
                 int64_t out_end, float* y, int64_t y_stride) {
  Columns(x, rows, in, reinterpret_cast<const hwy::bfloat16_t*>(w), out_begin, out_end, y,
          y_stride);
}
void ColumnsF16(const float* x, int64_t rows, int64_t in, const std::byte* w, int64_t out_begin,
                int64_t out_end, float* y, int64_t y_stride) {
  Columns(x, rows, in, reinterpret_cast<const hwy::float16_t*>(w), out_begin, out_end, y, y_stride);
}
void ColumnsF32(const float* x, int64_t rows, int64_t in, const std::byte* w, int64_t out_begin,
                int64_t out_end, float* y, int64_t y_stride) {
  Columns(x, rows, in, reinterpret_cast<const float*>(w), out_begin, out_end, y, y_stride);
}

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(ColumnsBf16);
HWY_EXPORT(ColumnsF16);
HWY_EXPORT(ColumnsF32);

void LinearColumns(const float* x, int64_t rows, int64_t in, const std::byte* weights, DType dtype,
                   int64_t out_begin, int64_t out_end, float* y, int64_t y_stride) {
  switch (dtype) {
    case DType::kBF16:
      return HWY_DYNAMIC_DISPATCH(ColumnsBf16)(x, rows, in, weights, out_begin, out_end, y,
                                               y_stride);
    case DType::kF16:
      return HWY_DYNAMIC_DISPATCH(ColumnsF16)(x, rows, in, weights, out_begin, out_end, y,
                                              y_stride);
    default:
      CHECK(dtype == DType::kF32) << DTypeName(dtype);
      return HWY_DYNAMIC_DISPATCH(ColumnsF32)(x, rows, in, weights, out_begin, out_end, y,
                                              y_stride);
  }
}

void Linear(const float* x, int64_t rows, const TensorView& w, float* y, int64_t y_stride,
            ThreadPool& threads) {
  CHECK_EQ(w.shape.size(), 2u);
  const int64_t out = w.shape[0];
  const int64_t in = w.shape[1];
  if (rows == 0) return;
  // A few pieces per thread even out unequal cores; each a multiple of the tile width.
  const int64_t pieces = int64_t{4} * threads.num_threads();
  const int64_t grain = std::max<int64_t>((out / pieces + 7) / 8 * 8, 8);
  threads.ParallelFor(out, grain, [&](int64_t begin, int64_t end, int) {
    LinearColumns(x, rows, in, w.data, w.dtype, begin, end, y, y_stride);
  });
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
