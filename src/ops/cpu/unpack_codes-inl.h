// The floats that codes of FP8 and NVFP4 stand for, in the order of their columns, for whoever
// stores or multiplies them. Included once per vector target, but for the scalar one; by files that
// are compiled with -ffp-contract=off.
//
// A kind of codes has
//
//   kBytes                of a piece of kCodePiece columns
//   kScaleUnit            what its scales are multiplied by beforehand, a power of two
//   Unpack(codes, scale, sink)  calls sink(first, weights) for the vectors of a piece; `first` is
//                               that of the vector within the piece, every weight is code * scale
#if defined(LAPIDARY_OPS_CPU_UNPACK_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAPIDARY_OPS_CPU_UNPACK_CODES_INL_H_
#undef LAPIDARY_OPS_CPU_UNPACK_CODES_INL_H_
#else
#define LAPIDARY_OPS_CPU_UNPACK_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include "ops/cpu/code_scales.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace codes {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;
using Words = hn::Rebind<int16_t, Floats>;
using Ints = hn::Rebind<int32_t, Floats>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats()));
static_assert(kCodePiece % kLanes == 0);

// Bits of halves.
HWY_INLINE FloatVec WidenHalves(hn::Vec<Words> bits) {
  return hn::PromoteTo(Floats(), hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), bits));
}

// FP8. Sign, exponent and fraction are those of a half with the exponent one bit longer, of 1/256
// of the value; halves below the smallest normal one are exact as well. Of codes that are no
// numbers it makes 480: HasNan tells.
struct E4M3 {
  static constexpr int kBytes = kCodePiece;
  static constexpr float kScaleUnit = 256.0f;

  template <class Sink>
  static HWY_INLINE void Unpack(const uint8_t* HWY_RESTRICT bytes, FloatVec scale,
                                const Sink& sink) {
    const auto* const codes = reinterpret_cast<const int8_t*>(bytes);
#if HWY_TARGET == HWY_AVX2
    // Words of two vectors of floats at once.
    const auto halves = Halves(hn::FixedTag<int16_t, kCodePiece>(), codes);
    sink(0, hn::Mul(WidenHalves(hn::LowerHalf(Words(), halves)), scale));
    sink(kLanes, hn::Mul(WidenHalves(hn::UpperHalf(Words(), halves)), scale));
#else
    HWY_UNROLL(4) for (int idx = 0; idx < kCodePiece; idx += kLanes) {
      sink(idx, hn::Mul(WidenHalves(Halves(Words(), codes + idx)), scale));
    }
#endif
  }

 private:
  template <class Tag>
  static HWY_INLINE hn::Vec<Tag> Halves(Tag d, const int8_t* codes) {
    const auto code = hn::PromoteTo(d, hn::LoadU(hn::Rebind<int8_t, Tag>(), codes));
    return hn::And(hn::ShiftLeft<7>(code), hn::Set(d, static_cast<int16_t>(0xbfff)));
  }
};

// NVFP4: sign and one of eight magnitudes; two codes a byte, the first one lowest.
struct E2M1 {
  static constexpr int kBytes = kCodePiece / 2;
  static constexpr float kScaleUnit = 1.0f;

#if HWY_TARGET <= HWY_AVX3
  template <class Sink>
  static HWY_INLINE void Unpack(const uint8_t* HWY_RESTRICT bytes, FloatVec scale,
                                const Sink& sink) {
    alignas(64) static constexpr float kValues[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                      4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                      -2.0f, -3.0f, -4.0f, -6.0f};
    alignas(64) static constexpr int32_t kShifts[16] = {0, 4, 8, 12, 16, 20, 24, 28,
                                                        0, 4, 8, 12, 16, 20, 24, 28};
    int32_t words[2];
    hwy::CopyBytes<8>(bytes, words);
    const __m512i both =
        _mm512_mask_set1_epi32(_mm512_set1_epi32(words[0]), __mmask16{0xff00}, words[1]);
    const __m512i code = _mm512_srlv_epi32(both, _mm512_load_si512(kShifts));
    const FloatVec values{_mm512_permutexvar_ps(code, _mm512_load_ps(kValues))};
    sink(0, hn::Mul(values, scale));
  }
#elif HWY_TARGET <= HWY_AVX2
  template <class Sink>
  static HWY_INLINE void Unpack(const uint8_t* HWY_RESTRICT bytes, FloatVec scale,
                                const Sink& sink) {
    alignas(32) static constexpr float kValues[8] = {0.0f, 0.5f, 1.0f, 1.5f,
                                                     2.0f, 3.0f, 4.0f, 6.0f};
    alignas(32) static constexpr int32_t kShifts[8] = {0, 4, 8, 12, 16, 20, 24, 28};
    HWY_UNROLL(2) for (int idx = 0; idx < kCodePiece; idx += kLanes) {
      int32_t word;
      hwy::CopyBytes<4>(bytes + idx / 2, &word);
      const __m256i code = _mm256_srlv_epi32(
          _mm256_set1_epi32(word), _mm256_load_si256(reinterpret_cast<const __m256i*>(kShifts)));
      const __m256 magnitude = _mm256_permutevar8x32_ps(_mm256_load_ps(kValues), code);
      const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(code, 3), 31);
      const FloatVec values{_mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign))};
      sink(idx, hn::Mul(values, scale));
    }
  }
#else
  // The bits are those of a half of 2^-14 of the value.
  template <class Sink>
  static HWY_INLINE void Unpack(const uint8_t* HWY_RESTRICT bytes, FloatVec scale,
                                const Sink& sink) {
    HWY_ALIGN int16_t halves[kCodePiece];
    for (int idx = 0; idx < kCodePiece; ++idx) {
      const int code = bytes[idx / 2] >> idx % 2 * 4;
      halves[idx] = static_cast<int16_t>((code & 7) << 9 | (code & 8) << 12);
    }
    for (int idx = 0; idx < kCodePiece; idx += kLanes) {
      const FloatVec values =
          hn::Mul(WidenHalves(hn::LoadU(Words(), halves + idx)), hn::Set(Floats(), 0x1p14f));
      sink(idx, hn::Mul(values, scale));
    }
  }
#endif
};

// Whether any of `count` codes of FP8 is no number.
HWY_INLINE bool HasNan(const uint8_t* HWY_RESTRICT bytes, int64_t count) {
  const hn::ScalableTag<uint8_t> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto sign = hn::Set(d, uint8_t{0x80});
  const auto all = hn::Set(d, uint8_t{0xff});
  auto found = hn::Zero(d);
  int64_t idx = 0;
  for (; idx + lanes <= count; idx += lanes) {
    found = hn::Max(found, hn::Or(hn::LoadU(d, bytes + idx), sign));
  }
  bool has_nan = !hn::AllFalse(d, hn::Eq(found, all));
  for (; idx < count; ++idx) has_nan |= (bytes[idx] & 0x7f) == 0x7f;
  return has_nan;
}

}  // namespace codes
}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR
#endif
