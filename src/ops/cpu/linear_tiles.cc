#include "ops/cpu/linear_tiles.h"

#include "base/check.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <hwy/base.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "ops/cpu/thread_buffer.h"

// GCC 12 warns of its own AVX-512 intrinsics.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace lapidary::cpu {
namespace {

constexpr int kStep = 32;  // elements of a row that one instruction takes
constexpr int kTile = 16;  // rows of w, and of x
constexpr int kLine = 64;  // bytes of a tile's row, and of a line of the cache
constexpr int kTileFloats = kTile * kTile;
constexpr int kBlock = 2 * kTile;  // rows of w, and of x, at a time: 2 x 2 tiles of sums

// Rows of x are taken so many at once, and columns of y in pieces of at most kPieceCols: their sums
// stay in the second-level cache.
constexpr int64_t kRowsAtOnce = 512;
constexpr int64_t kPieceCols = 128;
// With many rows a piece goes over x in slices of this depth, which stay in that cache as well.
constexpr int64_t kSliceSteps = 32;

// Rows of x as bf16, in groups of 16 (the last may have fewer), as tiles read them: of a group
// [in / 32][16 pairs of elements][rows of the group][2].
struct PackedRows {
  uint16_t* data;
  int64_t rows;
  int64_t in;

  int64_t num_steps() const { return in / kStep; }
  int64_t num_groups() const { return (rows + kTile - 1) / kTile; }
  int group_rows(int64_t group) const {
    return static_cast<int>(std::min<int64_t>(kTile, rows - group * kTile));
  }
  uint16_t* at(int64_t group, int64_t step) const {
    return data + group * kTile * in + step * kStep * group_rows(group);
  }
};

void PackRow(const float* x, int64_t row, const PackedRows& packed) {
  const int64_t group = row / kTile;
  const int group_rows = packed.group_rows(group);
  uint16_t* to = packed.at(group, 0) + row % kTile * 2;
  for (int64_t idx = 0; idx < packed.in; idx += 2, to += 2 * group_rows) {
    to[0] = FloatToBf16(x[idx]);
    to[1] = FloatToBf16(x[idx + 1]);
  }
}

// Rows of up to two tiles of w and of x; 0: there is no second one.
struct TileShape {
  int w_rows[2] = {0, 0};
  int x_rows[2] = {0, 0};

  bool operator==(const TileShape&) const = default;
};

// What is multiplied: rows of w from one on, groups of x from one on, so many steps of depth.
struct TileTask {
  const uint16_t* w;
  int64_t row_bytes;  // of w
  const uint16_t* x[2];
  int64_t num_steps;
  bool is_first;      // sums begin at 0
  const char* ahead;  // rows of w to be fetched meanwhile, as many; null: none
  float* sums[2][2];  // [tile of w][tile of x] -> [row of w][row of x], rows of 16
};

HWY_PUSH_ATTRIBUTES("avx512f,amx-tile,amx-bf16")

// GCC does not know that instructions on tiles read and write memory.
inline __attribute__((always_inline)) void MemoryBarrier() { asm volatile("" : : : "memory"); }

// Tiles 0..3 are sums, 2 * (tile of w) + (tile of x); 4, 5 are of w; 6, 7 of x.
void Configure(const TileShape& shape) {
  struct alignas(kLine) {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t bytes_per_row[16] = {};
    uint8_t rows[16] = {};
  } config;
  const auto set = [&](int tile, int rows, int bytes) {
    if (rows == 0 || bytes == 0) return;
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.bytes_per_row[tile] = static_cast<uint16_t>(bytes);
  };
  for (int idx = 0; idx < 2; ++idx) {
    set(2 * idx, shape.w_rows[idx], 4 * shape.x_rows[0]);
    set(2 * idx + 1, shape.w_rows[idx], 4 * shape.x_rows[1]);
    set(4 + idx, shape.w_rows[idx], kLine);
    set(6 + idx, shape.x_rows[idx] == 0 ? 0 : kTile, 4 * shape.x_rows[idx]);
  }
  MemoryBarrier();
  _tile_loadconfig(&config);
}

// kW x kX tiles of sums over the steps of a task.
template <int kW, int kX>
void MultiplyTiles(const TileTask& task, const TileShape& shape) {
  MemoryBarrier();
  if (task.is_first) {
    _tile_zero(0);
    if constexpr (kX > 1) _tile_zero(1);
    if constexpr (kW > 1) _tile_zero(2);
    if constexpr (kW > 1 && kX > 1) _tile_zero(3);
  } else {
    _tile_loadd(0, task.sums[0][0], kLine);
    if constexpr (kX > 1) _tile_loadd(1, task.sums[0][1], kLine);
    if constexpr (kW > 1) _tile_loadd(2, task.sums[1][0], kLine);
    if constexpr (kW > 1 && kX > 1) _tile_loadd(3, task.sums[1][1], kLine);
  }
  const char* w = reinterpret_cast<const char*>(task.w);
  const uint16_t* x0 = task.x[0];
  const uint16_t* x1 = task.x[1];
  const int64_t second = kTile * task.row_bytes;
  for (int64_t step = 0; step < task.num_steps; ++step) {
    _tile_loadd(6, x0, 4 * shape.x_rows[0]);
    _tile_loadd(4, w, task.row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kX > 1) {
      _tile_loadd(7, x1, 4 * shape.x_rows[1]);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kW > 1) {
      _tile_loadd(5, w + second, task.row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kX > 1) _tile_dpbf16ps(3, 5, 7);
    }
    if (task.ahead != nullptr) {
      const char* line = task.ahead + step * kLine;
      for (int row = 0; row < kW * kTile; ++row, line += task.row_bytes) {
        __builtin_prefetch(line, 0, 2);
      }
    }
    w += kLine;
    x0 += kStep * shape.x_rows[0];
    x1 += kStep * shape.x_rows[1];
  }
  _tile_stored(0, task.sums[0][0], kLine);
  if constexpr (kX > 1) _tile_stored(1, task.sums[0][1], kLine);
  if constexpr (kW > 1) _tile_stored(2, task.sums[1][0], kLine);
  if constexpr (kW > 1 && kX > 1) _tile_stored(3, task.sums[1][1], kLine);
  MemoryBarrier();
}

void Multiply(const TileTask& task, const TileShape& shape) {
  const bool has_two_of_x = shape.x_rows[1] != 0;
  if (shape.w_rows[1] != 0) {
    has_two_of_x ? MultiplyTiles<2, 2>(task, shape) : MultiplyTiles<2, 1>(task, shape);
  } else {
    has_two_of_x ? MultiplyTiles<1, 2>(task, shape) : MultiplyTiles<1, 1>(task, shape);
  }
}

// A tile of sums to y, whose rows are rows of x.
void StoreTile(const float* sums, int w_rows, int x_rows, float* y, int64_t y_stride) {
  const __mmask16 mask = static_cast<__mmask16>((1u << w_rows) - 1);
  const __m512i rows =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(kTile));
  for (int row = 0; row < x_rows; ++row) {
    const __m512 column =
        _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, rows, sums + row, sizeof(float));
    _mm512_mask_storeu_ps(y + row * y_stride, mask, column);
  }
}

void ReleaseTiles() { _tile_release(); }

HWY_POP_ATTRIBUTES

// Columns [begin, end) of y, at most kPieceCols. The rows of w from `ahead` on are fetched
// meanwhile where x has few rows; -1: none.
class Piece {
 public:
  Piece(const PackedRows& x, const MatrixRef& w, int64_t begin, int64_t end, int64_t ahead,
        float* sums)
      : x_(x), w_(w), begin_(begin), end_(end), ahead_(ahead), sums_(sums) {}

  void Run(float* y, int64_t y_stride) {
    const int64_t depth = x_.rows > kBlock ? kSliceSteps : x_.num_steps();
    for (int64_t step = 0; step < x_.num_steps(); step += depth) {
      for (int64_t col = begin_; col < end_; col += kBlock) {
        for (int64_t group = 0; group < x_.num_groups(); group += 2) {
          MultiplyBlock(col, group, step, std::min(depth, x_.num_steps() - step));
        }
      }
    }
    for (int64_t col = begin_; col < end_; col += kTile) {
      const int w_rows = static_cast<int>(std::min<int64_t>(kTile, end_ - col));
      for (int64_t group = 0; group < x_.num_groups(); ++group) {
        StoreTile(Sums(col, group), w_rows, x_.group_rows(group),
                  y + group * kTile * y_stride + col, y_stride);
      }
    }
    ReleaseTiles();
  }

 private:
  float* Sums(int64_t col, int64_t group) const {
    return sums_ + ((col - begin_) / kTile * x_.num_groups() + group) * kTileFloats;
  }

  void MultiplyBlock(int64_t col, int64_t group, int64_t step, int64_t num_steps) {
    TileShape shape;
    TileTask task{};
    for (int idx = 0; idx < 2; ++idx) {
      shape.w_rows[idx] = static_cast<int>(std::clamp<int64_t>(end_ - col - idx * kTile, 0, kTile));
      if (group + idx >= x_.num_groups()) continue;
      shape.x_rows[idx] = x_.group_rows(group + idx);
      task.x[idx] = x_.at(group + idx, step);
      for (int tile = 0; tile < 2; ++tile) {
        task.sums[tile][idx] = Sums(col + tile * kTile, group + idx);
      }
    }
    if (shape != configured_) Configure(shape);
    configured_ = shape;
    const uint16_t* w = w_.As<uint16_t>() + step * kStep;
    task.w = w + col * w_.cols;
    task.row_bytes = w_.row_bytes();
    task.num_steps = num_steps;
    task.is_first = step == 0;
    const int64_t next = col + kBlock < end_ ? col + kBlock : ahead_;
    if (group + 2 >= x_.num_groups() && next >= 0) {
      task.ahead = reinterpret_cast<const char*>(w + next * w_.cols);
    }
    Multiply(task, shape);
  }

  const PackedRows& x_;
  const MatrixRef& w_;
  const int64_t begin_;
  const int64_t end_;
  const int64_t ahead_;
  float* const sums_;
  TileShape configured_;
};

void RunColumns(const PackedRows& x, const MatrixRef& w, int64_t begin, int64_t end, int64_t ahead,
                float* y, int64_t y_stride) {
  static thread_local ThreadBuffer<float> buffer;
  float* sums = buffer.Get(kPieceCols / kTile * x.num_groups() * kTileFloats);
  for (int64_t col = begin; col < end; col += kPieceCols) {
    const int64_t piece_end = std::min(col + kPieceCols, end);
    Piece(x, w, col, piece_end, piece_end < end ? piece_end : ahead, sums).Run(y, y_stride);
  }
}

bool AskForTiles() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr uint32_t kBf16Bit = 1u << 22;
  constexpr uint32_t kTileBit = 1u << 24;
  if ((edx & kBf16Bit) == 0 || (edx & kTileBit) == 0) return false;
  if (!__builtin_cpu_supports("avx512f")) return false;
  // Linux grants the state of the tiles to processes that ask (ARCH_REQ_XCOMP_PERM, XTILEDATA).
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

PackedRows Packed(int64_t rows, int64_t in) {
  static thread_local ThreadBuffer<uint16_t> buffer;
  return {buffer.Get(rows * in), rows, in};
}

}  // namespace

bool HasTiles() {
  static const bool has_tiles = AskForTiles();
  return has_tiles;
}

void LinearTileColumns(const float* x, int64_t rows, const MatrixRef& w, int64_t out_begin,
                       int64_t out_end, float* y, int64_t y_stride) {
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const PackedRows packed = Packed(std::min(kRowsAtOnce, rows - first), w.cols);
    for (int64_t row = 0; row < packed.rows; ++row) {
      PackRow(x + (first + row) * w.cols, row, packed);
    }
    RunColumns(packed, w, out_begin, out_end, /*ahead=*/-1, y + first * y_stride, y_stride);
  }
}

void LinearTiles(const float* x, int64_t rows, const MatrixRef& w, float* y, int64_t y_stride,
                 ThreadPool& threads) {
  // Two pieces or more for every thread even out unequal cores. They are handed out in order, so
  // the one after the next of all threads is likely this thread's next.
  const int64_t share = w.rows / (int64_t{2} * threads.num_threads()) / kBlock * kBlock;
  const int64_t grain = std::clamp<int64_t>(share, kBlock, kPieceCols);
  const int64_t distance = grain * threads.num_threads_of_share();
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const PackedRows packed = Packed(std::min(kRowsAtOnce, rows - first), w.cols);
    threads.ParallelFor(packed.rows, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        PackRow(x + (first + row) * w.cols, row, packed);
      }
    });
    threads.ParallelFor(w.rows, grain, [&](int64_t begin, int64_t end, int) {
      const int64_t next = begin + distance;
      RunColumns(packed, w, begin, end, next < w.rows ? next : -1, y + first * y_stride, y_stride);
    });
  }
}

}  // namespace lapidary::cpu

#else

namespace lapidary::cpu {

bool HasTiles() { return false; }

void LinearTiles(const float*, int64_t, const MatrixRef&, float*, int64_t, ThreadPool&) {
  CHECK(false) << "no tiles";
}

void LinearTileColumns(const float*, int64_t, const MatrixRef&, int64_t, int64_t, float*, int64_t) {
  CHECK(false) << "no tiles";
}

}  // namespace lapidary::cpu

#endif  // x86-64

namespace lapidary::cpu {

bool FitsTiles(const MatrixRef& w) {
  return HasTiles() && w.format.unit == DType::kBF16 && w.cols % 32 == 0;
}

}  // namespace lapidary::cpu
