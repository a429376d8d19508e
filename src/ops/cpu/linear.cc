#include "ops/cpu/linear.h"

#include <algorithm>

#include "base/check.h"
#include "base/even_grain.h"
#include "ops/cpu/code_scales.h"
#include "ops/cpu/dequantise.h"
#include "ops/cpu/linear_blocks.h"
#include "ops/cpu/linear_codes.h"
#include "ops/cpu/linear_panels.h"
#include "ops/cpu/linear_tiles.h"
#include "ops/cpu/thread_buffer.h"

#ifndef LAPIDARY_OPS_CPU_LINEAR_TASK
#define LAPIDARY_OPS_CPU_LINEAR_TASK
namespace lapidary::cpu {

// One product over rows that are packed already.
struct LinearTask {
  const float* packed;
  const float* x;  // [rows, in]
  int64_t rows;
  MatrixRef w;  // [out, in]
  float* y;     // [rows, out]
  int64_t y_stride;
};

// Each thread's own.
inline thread_local ThreadBuffer<float> packed_buffer;
inline thread_local ThreadBuffer<float> weights_buffer;

}  // namespace lapidary::cpu
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/linear.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/sum_lanes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;

// A tile is kTileRows x kTileCols accumulators. With a vector of weights per column and one of x
// they fill AVX-512's 32 registers; machines with 16 registers take 2 x 4.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3;
constexpr int kTileRows = kManyRegisters ? 8 : 2;
constexpr int kTileCols = kManyRegisters ? 3 : 4;

// Columns are taken in blocks whose weights stay in the second-level cache for all rows, and a
// block in slices of kSliceDepth values, so that a tile's rows of x stay in the first-level cache.
constexpr int64_t kSliceDepth = 512;
// With many rows a larger block pays, for x is read again for each.
constexpr int64_t kMaxBlockCols = 24;  // a multiple of kTileCols
constexpr int64_t kBlockBytes = 160 << 10;
constexpr int64_t kManyRows = 32;
constexpr int64_t kManyRowsBlockBytes = 320 << 10;
// Of formats with scales a block's floats are made first; for few rows they stay in the first-level
// cache where one tile's columns fit.
constexpr int64_t kDequantisedBytes = 24 << 10;

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

// x as tiles read it: for every tile of rows [in / lanes][rows of the tile][lanes]. Rows as they
// come are often a multiple of 4 KiB apart and then fight for the same few lines of the first-level
// cache. The remainder of `in` behind the last whole vector is not copied.
int64_t WholeVectors(int64_t in) { return in - in % static_cast<int64_t>(hn::Lanes(Floats())); }

void PackSlice(const float* HWY_RESTRICT x, int64_t in, int64_t rows, int64_t begin, int64_t end,
               float* HWY_RESTRICT packed) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  packed += begin * rows;
  for (int64_t k = begin; k < end; k += lanes) {
    for (int64_t row = 0; row < rows; ++row, packed += lanes) {
      hn::StoreU(hn::LoadU(d, x + row * in + k), d, packed);
    }
  }
}

// Piece `idx` of the packing of `rows` rows; pieces are independent.
int64_t NumPackPieces(int64_t rows, int64_t in) {
  return (rows + kTileRows - 1) / kTileRows * ((in + kSliceDepth - 1) / kSliceDepth);
}
void PackPiece(const float* x, int64_t rows, int64_t in, int64_t idx, float* packed) {
  const int64_t num_slices = (in + kSliceDepth - 1) / kSliceDepth;
  const int64_t row = idx / num_slices * kTileRows;
  const int64_t begin = idx % num_slices * kSliceDepth;
  const int64_t depth = WholeVectors(in);
  PackSlice(x + row * in, in, std::min<int64_t>(kTileRows, rows - row), begin,
            std::min(begin + kSliceDepth, depth), packed + row * depth);
}

// Makes the compiler hold a vector in a register. GCC would rather read x from memory once for
// every product, and then loads, one a cycle, set the pace.
HWY_INLINE void KeepInRegister(FloatVec& v) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  asm("" : "+v"(v.raw));
#else
  static_cast<void>(v);
#endif
}

// What is fetched into the second-level cache while a tile is computed: `step` bytes for every
// vector of depth, from `next` on. The processor's own prefetching begins anew with every row of
// weights and is too late.
struct Ahead {
  const char* next;
  int64_t step;  // 0: nothing
};

// Adds a slice of depth to the accumulators of one tile, [kRows][kCols] vectors. Each walks `in`
// from 0 upwards, slice by slice: the same chain for every tile shape.
template <typename W, int kRows, int kCols>
HWY_NOINLINE void TileSlice(const float* HWY_RESTRICT packed, int64_t depth,
                            const W* HWY_RESTRICT w, int64_t in, bool is_first, Ahead ahead,
                            float* HWY_RESTRICT sums) {
  const Floats d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Floats()));
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kLine = 64;
  constexpr int64_t kLinesAhead = (kCols * kLanes * sizeof(W) + kLine - 1) / kLine;
  FloatVec acc[kRows][kCols];
  HWY_UNROLL(8) for (int row = 0; row < kRows; ++row) {
    HWY_UNROLL(8) for (int col = 0; col < kCols; ++col) {
      acc[row][col] = is_first ? hn::Zero(d) : hn::LoadU(d, sums + (row * kCols + col) * kLanes);
    }
  }
  for (int64_t k = 0; k < depth; k += lanes) {
    FloatVec weights[kCols];
    HWY_UNROLL(8)
    for (int col = 0; col < kCols; ++col) weights[col] = LoadWeights(d, w + col * in + k);
    HWY_UNROLL(8) for (int64_t line = 0; line < kLinesAhead; ++line) {
      __builtin_prefetch(ahead.next + line * kLine, 0, 2);
    }
    ahead.next += ahead.step;
    HWY_UNROLL(8) for (int row = 0; row < kRows; ++row) {
      FloatVec xs = hn::LoadU(d, packed + row * lanes);
      KeepInRegister(xs);
      HWY_UNROLL(8) for (int col = 0; col < kCols; ++col) {
        acc[row][col] = hn::MulAdd(xs, weights[col], acc[row][col]);
      }
    }
    packed += kRows * lanes;
  }
  HWY_UNROLL(8) for (int row = 0; row < kRows; ++row) {
    HWY_UNROLL(8) for (int col = 0; col < kCols; ++col) {
      hn::StoreU(acc[row][col], d, sums + (row * kCols + col) * kLanes);
    }
  }
}

// y of kRows rows for the columns [begin, end), at most kMaxBlockCols of them, a multiple of kCols.
// From `ahead` on as many weights are fetched as are used here; null: none. A prefetch cannot
// fault, so they need not all be there.
template <typename W, int kRows, int kCols>
void RowTile(const float* packed, const float* x, int64_t in, const W* w, int64_t begin,
             int64_t end, const W* ahead, float* y, int64_t y_stride) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kTileFloats = kRows * kCols * static_cast<int64_t>(hn::MaxLanes(Floats()));
  HWY_ALIGN float sums[kMaxBlockCols / kCols * kTileFloats];
  const int64_t depth = WholeVectors(in);
  const int64_t step = ahead == nullptr ? 0 : kCols * lanes * static_cast<int64_t>(sizeof(W));
  Ahead fetched{reinterpret_cast<const char*>(ahead == nullptr ? w : ahead), step};
  // At least one slice, for the accumulators of a depth below one vector must become zero.
  int64_t k = 0;
  do {
    const int64_t slice = std::min(kSliceDepth, depth - k);
    for (int64_t col = begin; col < end; col += kCols) {
      TileSlice<W, kRows, kCols>(packed + k * kRows, slice, w + col * in + k, in, k == 0, fetched,
                                 sums + (col - begin) / kCols * kTileFloats);
      fetched.next += slice / lanes * step;
    }
    k += slice;
  } while (k < depth);
  constexpr int64_t kMaxLanes = static_cast<int64_t>(hn::MaxLanes(Floats()));
  const int64_t num_sums = (end - begin) * kRows;
  float totals[kMaxBlockCols * kRows + 3];
  for (int64_t idx = 0; idx < num_sums; idx += 4) {
    const auto sum = [&](int64_t offset) {
      return hn::LoadU(d, sums + std::min(idx + offset, num_sums - 1) * kMaxLanes);
    };
    SumLanesOfFour(d, sum(0), sum(1), sum(2), sum(3), totals + idx);
  }
  const float* total = totals;
  for (int64_t first = begin; first < end; first += kCols) {
    for (int row = 0; row < kRows; ++row) {
      for (int64_t col = first; col < first + kCols; ++col, ++total) {
        float value = *total;
        for (int64_t tail = depth; tail < in; ++tail) {
          value += x[row * in + tail] * WidenOne(w + col * in + tail);
        }
        y[row * y_stride + col] = value;
      }
    }
  }
}

template <typename W, int kRows>
void RowTileAnyColumns(const float* packed, const float* x, int64_t in, const W* w, int64_t begin,
                       int64_t end, const W* ahead, float* y, int64_t y_stride) {
  constexpr int kCols = kTileCols;
  const int64_t whole_end = end - (end - begin) % kCols;
  if (begin < whole_end) {
    RowTile<W, kRows, kCols>(packed, x, in, w, begin, whole_end, ahead, y, y_stride);
  }
  if (whole_end < end) {
    RowTile<W, kRows, 1>(packed, x, in, w, whole_end, end, ahead, y, y_stride);
  }
}

template <typename W, int kRows = kTileRows>
void RowTileAnyRows(int64_t rows, const float* packed, const float* x, int64_t in, const W* w,
                    int64_t begin, int64_t end, const W* ahead, float* y, int64_t y_stride) {
  if (rows == kRows) {
    RowTileAnyColumns<W, kRows>(packed, x, in, w, begin, end, ahead, y, y_stride);
  } else if constexpr (kRows > 1) {
    RowTileAnyRows<W, kRows - 1>(rows, packed, x, in, w, begin, end, ahead, y, y_stride);
  }
}

int64_t BlockColumns(const WeightFormat& format, int64_t rows, int64_t in) {
  const bool is_plain = format.is_plain();
  const int64_t bytes = rows >= kManyRows ? kManyRowsBlockBytes
                        : is_plain        ? kBlockBytes
                                          : kDequantisedBytes;
  const int64_t fitting = bytes / DTypeBytes(is_plain ? format.unit : DType::kF32, in);
  return std::clamp<int64_t>(fitting / kTileCols * kTileCols, kTileCols, kMaxBlockCols);
}

// The columns [begin, end) of one block. The weights from column `ahead` on are fetched meanwhile;
// -1: none.
template <typename W>
void Block(const LinearTask& task, int64_t begin, int64_t end, int64_t ahead) {
  const int64_t in = task.w.cols;
  const int64_t depth = WholeVectors(in);
  const W* w = task.w.As<W>();
  for (int64_t row = 0; row < task.rows; row += kTileRows) {
    // The last rows do it, so that what is fetched is still there when its turn comes.
    const bool is_last = row + kTileRows >= task.rows;
    RowTileAnyRows<W>(std::min<int64_t>(kTileRows, task.rows - row), task.packed + row * depth,
                      task.x + row * in, in, w, begin, end,
                      is_last && ahead >= 0 ? w + ahead * in : nullptr,
                      task.y + row * task.y_stride, task.y_stride);
  }
}

// Formats with scales: the weights lie directly behind each other, and the processor fetches ahead.
void DequantisedBlock(const LinearTask& task, int64_t begin, int64_t end) {
  const int64_t count = end - begin;
  float* weights = weights_buffer.Get(count * task.w.cols);
  DequantiseRows(task.w, begin, count, weights);
  LinearTask part = task;
  part.w = {.data = weights,
            .format = FormatOf(DType::kF32),
            .rows = static_cast<int>(count),
            .cols = task.w.cols};
  part.y += begin;
  Block<float>(part, 0, count, /*ahead=*/-1);
}

void BlockOf(const LinearTask& task, int64_t begin, int64_t end, int64_t ahead) {
  if (!task.w.format.is_plain()) return DequantisedBlock(task, begin, end);
  switch (task.w.format.unit) {
    case DType::kBF16:
      return Block<hwy::bfloat16_t>(task, begin, end, ahead);
    case DType::kF16:
      return Block<hwy::float16_t>(task, begin, end, ahead);
    default:
      CHECK(task.w.format.unit == DType::kF32) << DTypeName(task.w.format.unit);
      return Block<float>(task, begin, end, ahead);
  }
}

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(NumPackPieces);
HWY_EXPORT(PackPiece);
HWY_EXPORT(BlockColumns);
HWY_EXPORT(BlockOf);

namespace {

// Rows are taken in blocks of about this many bytes of packed x. That is the whole batch of all but
// the widest decode steps, whose weights are read once; a long prompt needs no second copy of
// itself.
constexpr int64_t kPackedBytes = 4 << 20;

int64_t RowsAtOnce(int64_t rows, int64_t in) {
  constexpr int64_t kMultiple = 8;  // of every target's tile height
  return std::min(rows, std::max(kPackedBytes / (in * 4) / kMultiple, int64_t{4}) * kMultiple);
}

bool FitsInRegisters(const MatrixRef& w, int64_t rows) {
  return rows <= MaxRowsInRegisters() && (IsBlockDType(w.format.unit) || HasCodePieces(w));
}

void FewRows(const float* x, int64_t rows, const MatrixRef& w, int64_t begin, int64_t end, float* y,
             int64_t y_stride) {
  if (w.format.is_float_codes()) return LinearCodes(x, rows, w, begin, end, y, y_stride);
  LinearInRegisters(x, rows, w, begin, end, y, y_stride);
}

// The columns [begin, end), block by block; behind the last one the caller's next ones are fetched,
// those from `ahead` on (-1: none).
void RunBlocks(const LinearTask& task, int64_t block, int64_t begin, int64_t end, int64_t ahead) {
  for (; begin < end; begin += block) {
    const int64_t block_end = std::min(begin + block, end);
    HWY_DYNAMIC_DISPATCH(BlockOf)
    (task, begin, block_end, block_end < end ? block_end : ahead);
  }
}

}  // namespace

void LinearColumns(const float* x, int64_t rows, const MatrixRef& w, int64_t out_begin,
                   int64_t out_end, float* y, int64_t y_stride, Bf16Math bf16_math) {
  const int64_t in = w.cols;
  if (rows == 0) return;
  if (bf16_math == Bf16Math::kTiles && FitsTiles(w)) {
    return LinearTileColumns(x, rows, w, out_begin, out_end, y, y_stride);
  }
  if (IsPanelDType(w.format.unit)) {
    return LinearPanelColumns(x, rows, w, out_begin, out_end, y, y_stride);
  }
  if (FitsInRegisters(w, rows)) {
    return FewRows(x, rows, w, out_begin, out_end, y, y_stride);
  }
  const int64_t rows_at_once = RowsAtOnce(rows, in);
  float* packed = packed_buffer.Get(rows_at_once * in);
  const int64_t block = HWY_DYNAMIC_DISPATCH(BlockColumns)(w.format, rows_at_once, in);
  for (int64_t row = 0; row < rows; row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, rows - row);
    const LinearTask task{packed, x + row * in, count, w, y + row * y_stride, y_stride};
    const int64_t num_pieces = HWY_DYNAMIC_DISPATCH(NumPackPieces)(count, in);
    for (int64_t idx = 0; idx < num_pieces; ++idx) {
      HWY_DYNAMIC_DISPATCH(PackPiece)(task.x, count, in, idx, packed);
    }
    RunBlocks(task, block, out_begin, out_end, /*ahead=*/-1);
  }
}

void Linear(const float* x, int64_t rows, const MatrixRef& w, float* y, int64_t y_stride,
            ThreadPool& threads, Bf16Math bf16_math) {
  const int64_t out = w.rows;
  const int64_t in = w.cols;
  if (rows == 0) return;
  if (bf16_math == Bf16Math::kTiles && FitsTiles(w)) {
    return LinearTiles(x, rows, w, y, y_stride, threads);
  }
  if (IsPanelDType(w.format.unit)) return LinearPanels(x, rows, w, y, y_stride, threads);
  const int64_t num_pieces = int64_t{4} * threads.num_threads();
  if (FitsInRegisters(w, rows)) {
    constexpr int64_t kMultiple = 4;  // of every target's columns at once
    const int64_t grain = EvenGrain(out, kMultiple, threads.num_threads());
    return threads.ParallelFor(out, grain, [&](int64_t begin, int64_t end, int) {
      FewRows(x, rows, w, begin, end, y, y_stride);
    });
  }
  const int64_t rows_at_once = RowsAtOnce(rows, in);
  float* packed = packed_buffer.Get(rows_at_once * in);
  // A few pieces per thread even out unequal cores. They are handed out in order, so the one after
  // the next of all threads is likely this thread's next.
  const int64_t block = HWY_DYNAMIC_DISPATCH(BlockColumns)(w.format, rows_at_once, in);
  const int64_t grain = std::max<int64_t>((out / num_pieces + block - 1) / block, 1) * block;
  const int64_t distance = grain * threads.num_threads_of_share();
  for (int64_t row = 0; row < rows; row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, rows - row);
    const LinearTask task{packed, x + row * in, count, w, y + row * y_stride, y_stride};
    const int64_t num_pack_pieces = HWY_DYNAMIC_DISPATCH(NumPackPieces)(count, in);
    threads.ParallelFor(num_pack_pieces, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t idx = begin; idx < end; ++idx) {
        HWY_DYNAMIC_DISPATCH(PackPiece)(task.x, count, in, idx, packed);
      }
    });
    threads.ParallelFor(out, grain, [&](int64_t begin, int64_t end, int) {
      const int64_t next = begin + distance;
      RunBlocks(task, block, begin, end, next < out ? next : -1);
    });
  }
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
