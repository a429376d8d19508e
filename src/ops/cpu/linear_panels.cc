#include "ops/cpu/linear_panels.h"

#include <hwy/base.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/even_grain.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/quantised_rows.h"
#include "tensor/panels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// GCC 12 warns of its own AVX-512 intrinsics.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

namespace lapidary::cpu {
namespace {

constexpr int PanelBlockBytes(DType dtype) {
  switch (dtype) {
    case DType::kPanel4:
      return 18;
    case DType::kPanel4Min:
      return 20;
    case DType::kPanel8:
      return 34;
    default:
      return 28;
  }
}

// One column at a time: any machine's, and what the others are tested against.
namespace plain {
struct Isa {
  static constexpr int kCols = 1;
  static constexpr int kMaxRows = 1;
  static constexpr int kSignedZero = 0;  // what AddSigned adds to codes
  using Float = float;
  struct Int {
    int32_t at[4];  // codes; of totals the first counts
  };
  struct Dot {
    int32_t total;
    INLINE void Clear() { total = 0; }
    template <bool kSmall>
    INLINE void Add(Int codes, Int x) {
      AddSigned(codes, x);
    }
    INLINE void AddSigned(Int codes, Int x) {
      UNROLL for (int idx = 0; idx < 4; ++idx) total += codes.at[idx] * x.at[idx];
    }
    INLINE Int Total() const { return {{total}}; }
  };
  template <typename Byte>
  static INLINE Int Widen(const Byte* bytes) {
    return {{bytes[0], bytes[1], bytes[2], bytes[3]}};
  }
  template <typename Function>
  static INLINE Int Each(const Function& function) {
    return {{function(0), function(1), function(2), function(3)}};
  }
  // Signed, as the codes of kPanel8 are; the others' bits are masked.
  static INLINE Int Load(const uint8_t* codes) {
    return Widen(reinterpret_cast<const int8_t*>(codes));
  }
  static INLINE Int Broadcast(const int8_t* x) { return Widen(x); }
  static INLINE Int LowNibbles(Int v) {
    return Each([&](int idx) { return v.at[idx] & 15; });
  }
  static INLINE Int HighNibbles(Int v) {
    return Each([&](int idx) { return v.at[idx] >> 4 & 15; });
  }
  static INLINE Int WithTop(Int v, Int top, int group) {
    return Each([&](int idx) { return v.at[idx] | (top.at[idx] >> 2 * group & 3) << 4; });
  }
  static INLINE Int Set(int32_t value) { return {{value}}; }
  static INLINE float Set(float value) { return value; }
  static INLINE Int Sub(Int a, Int b) { return {{a.at[0] - b.at[0]}}; }
  static INLINE float ToFloat(Int v) { return static_cast<float>(v.at[0]); }
  static INLINE float Mul(float a, float b) { return a * b; }
  static INLINE float MulAdd(float a, float b, float c) { return std::fma(a, b, c); }
  static INLINE float LoadHalves(const uint8_t* halves) {
    uint16_t bits;
    std::memcpy(&bits, halves, sizeof(bits));
    return F16ToFloat(bits);
  }
  static INLINE void Store(float v, float* to) { *to = v; }
};
#include "ops/cpu/panel_tile-inl.h"
}  // namespace plain

#if defined(__x86_64__)

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")
namespace avx2 {
struct Isa {
  static constexpr int kCols = 8;
  static constexpr int kMaxRows = 4;
  static constexpr int kSignedZero = 0;
  using Float = __m256;
  using Int = __m256i;
  // Products of bytes are added in pairs to 16 bits: of codes below 16 all of a run fit in there.
  struct Dot {
    Int pairs;
    Int total;
    INLINE void Clear() { pairs = total = _mm256_setzero_si256(); }
    template <bool kSmall>
    INLINE void Add(Int codes, Int x) {
      const Int products = _mm256_maddubs_epi16(codes, x);
      if constexpr (kSmall) {
        pairs = _mm256_add_epi16(pairs, products);
      } else {
        total = _mm256_add_epi32(total, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
      }
    }
    // The sign of a code goes to x.
    INLINE void AddSigned(Int codes, Int x) {
      Add<false>(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
    }
    INLINE Int Total() const {
      return _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  };
  static INLINE Int Load(const uint8_t* codes) {
    return _mm256_loadu_si256(reinterpret_cast<const Int*>(codes));
  }
  static INLINE Int Broadcast(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof(four));
    return _mm256_set1_epi32(four);
  }
  static INLINE Int LowNibbles(Int v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  static INLINE Int HighNibbles(Int v) { return LowNibbles(_mm256_srli_epi16(v, 4)); }
  static INLINE Int WithTop(Int v, Int top, int group) {
    const Int moved = group == 0   ? _mm256_slli_epi16(top, 4)
                      : group == 1 ? _mm256_slli_epi16(top, 2)
                      : group == 2 ? top
                                   : _mm256_srli_epi16(top, 2);
    return _mm256_or_si256(v, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
  }
  static INLINE Int Set(int32_t value) { return _mm256_set1_epi32(value); }
  static INLINE Float Set(float value) { return _mm256_set1_ps(value); }
  static INLINE Int Sub(Int a, Int b) { return _mm256_sub_epi32(a, b); }
  static INLINE Float ToFloat(Int v) { return _mm256_cvtepi32_ps(v); }
  static INLINE Float Mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static INLINE Float MulAdd(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static INLINE Float LoadHalves(const uint8_t* halves) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
  }
  static INLINE void Store(Float v, float* to) { _mm256_storeu_ps(to, v); }
};
#include "ops/cpu/panel_tile-inl.h"
}  // namespace avx2
HWY_POP_ATTRIBUTES

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
namespace vnni {
struct Isa {
  static constexpr int kCols = 16;
  static constexpr int kMaxRows = 8;
  static constexpr int kSignedZero = 128;
  using Float = __m512;
  using Int = __m512i;
  struct Dot {
    Int total;
    INLINE void Clear() { total = _mm512_setzero_si512(); }
    template <bool kSmall>
    INLINE void Add(Int codes, Int x) {
      total = _mm512_dpbusd_epi32(total, codes, x);
    }
    // One side of the instruction has no sign: of code + 128.
    INLINE void AddSigned(Int codes, Int x) {
      Add<false>(_mm512_xor_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80))), x);
    }
    INLINE Int Total() const { return total; }
  };
  static INLINE Int Load(const uint8_t* codes) { return _mm512_loadu_si512(codes); }
  static INLINE Int Broadcast(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof(four));
    return _mm512_set1_epi32(four);
  }
  static INLINE Int LowNibbles(Int v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  static INLINE Int HighNibbles(Int v) { return LowNibbles(_mm512_srli_epi16(v, 4)); }
  static INLINE Int WithTop(Int v, Int top, int group) {
    const Int moved = group == 0   ? _mm512_slli_epi16(top, 4)
                      : group == 1 ? _mm512_slli_epi16(top, 2)
                      : group == 2 ? top
                                   : _mm512_srli_epi16(top, 2);
    return _mm512_or_si512(v, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)));
  }
  static INLINE Int Set(int32_t value) { return _mm512_set1_epi32(value); }
  static INLINE Float Set(float value) { return _mm512_set1_ps(value); }
  static INLINE Int Sub(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  static INLINE Float ToFloat(Int v) { return _mm512_cvtepi32_ps(v); }
  static INLINE Float Mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static INLINE Float MulAdd(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static INLINE Float LoadHalves(const uint8_t* halves) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
  }
  static INLINE void Store(Float v, float* to) { _mm512_storeu_ps(to, v); }
};
#include "ops/cpu/panel_tile-inl.h"
}  // namespace vnni
HWY_POP_ATTRIBUTES

#endif  // x86-64

bool Has(PanelTarget target) {
  if (target == PanelTarget::kPlain) return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (target == PanelTarget::kAvx2) return has_avx2;
  return has_avx2 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

PanelTarget BestTarget() {
  static const PanelTarget best = PanelTargets().back();
  return best;
}

std::atomic<const PanelTarget*> target_for_test = nullptr;

PanelTarget Target() {
  const PanelTarget* chosen = target_for_test;
  return chosen != nullptr ? *chosen : BestTarget();
}

// A panel's 16 columns of y for all rows.
void PanelProduct(PanelTarget target, DType dtype, const uint8_t* panel, const QuantisedRows& x,
                  float* y, int64_t y_stride) {
  switch (target) {
#if defined(__x86_64__)
    case PanelTarget::kVnni:
      return vnni::Panel(dtype, panel, x, 0, y, y_stride);
    case PanelTarget::kAvx2:
      return avx2::Panel(dtype, panel, x, 0, y, y_stride);
#endif
    default:
      return plain::Panel(dtype, panel, x, 0, y, y_stride);
  }
}

void Columns(const QuantisedRows& x, const MatrixRef& w, int64_t begin, int64_t end, float* y,
             int64_t y_stride) {
  CHECK(begin % kPanelRows == 0 && end % kPanelRows == 0) << begin << " to " << end;
  const PanelTarget target = Target();
  for (int64_t col = begin; col < end; col += kPanelRows) {
    PanelProduct(target, w.format.unit, w.As<uint8_t>() + col * w.row_bytes(), x, y + col,
                 y_stride);
  }
}

// Rows at once: as many as stay in the second-level cache beside a panel, while weights that come
// from memory are read once for all but long prompts.
constexpr int64_t kRowsAtOnce = 512;

// body(rows rounded to 8 bits, the first of them) for at most kRowsAtOnce at a time.
template <typename Body>
void ForRounded(const float* x, int64_t rows, int64_t in, ThreadPool& threads, const Body& body) {
  static thread_local RowBuffer buffer;
  for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows - row);
    const QuantisedRows quantised = buffer.Get(count, in);
    const float* from = x + row * in;
    if (count == 1) {
      QuantiseRows(from, 0, 1, quantised);
    } else {
      threads.ParallelFor(count, 4, [&](int64_t begin, int64_t end, int) {
        QuantiseRows(from, begin, end, quantised);
      });
    }
    body(quantised, row);
  }
}

}  // namespace

const char* PanelTargetName(PanelTarget target) {
  constexpr const char* kNames[] = {"plain", "AVX2", "VNNI"};
  return kNames[static_cast<int>(target)];
}

std::vector<PanelTarget> PanelTargets() {
  std::vector<PanelTarget> targets;
  for (const PanelTarget target : {PanelTarget::kPlain, PanelTarget::kAvx2, PanelTarget::kVnni}) {
    if (Has(target)) targets.push_back(target);
  }
  return targets;
}

void SetPanelTargetForTest(const PanelTarget* target) { target_for_test = target; }

void LinearPanelColumns(const float* x, int64_t rows, const MatrixRef& w, int64_t out_begin,
                        int64_t out_end, float* y, int64_t y_stride) {
  static thread_local RowBuffer buffer;
  for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows - row);
    const QuantisedRows quantised = buffer.Get(count, w.cols);
    QuantiseRows(x + row * w.cols, 0, count, quantised);
    Columns(quantised, w, out_begin, out_end, y + row * y_stride, y_stride);
  }
}

void LinearPanels(const float* x, int64_t rows, const MatrixRef& w, float* y, int64_t y_stride,
                  ThreadPool& threads) {
  ForRounded(x, rows, w.cols, threads, [&](const QuantisedRows& rounded, int64_t row) {
    const int64_t grain = EvenGrain(w.rows, kPanelRows, threads.num_threads());
    threads.ParallelFor(w.rows, grain, [&](int64_t begin, int64_t end, int) {
      Columns(rounded, w, begin, end, y + row * y_stride, y_stride);
    });
  });
}

void GatedLinearPanels(const float* x, int64_t rows, const MatrixRef& gate, const MatrixRef& up,
                       float* h, float* ups, ThreadPool& threads) {
  CHECK(gate.rows == up.rows && gate.cols == up.cols);
  const int64_t width = gate.rows;
  ForRounded(x, rows, gate.cols, threads, [&](const QuantisedRows& rounded, int64_t row) {
    float* gates = h + row * width;
    float* up_rows = ups + row * width;
    const int64_t grain = EvenGrain(width, kPanelRows, threads.num_threads());
    threads.ParallelFor(width, grain, [&](int64_t begin, int64_t end, int) {
      Columns(rounded, gate, begin, end, gates, width);
      Columns(rounded, up, begin, end, up_rows, width);
      for (int64_t idx = 0; idx < rounded.rows; ++idx) {
        GeluMul(gates + idx * width + begin, up_rows + idx * width + begin, end - begin);
      }
    });
  });
}

}  // namespace lapidary::cpu
