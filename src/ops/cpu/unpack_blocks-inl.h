// The floats of block formats, vector by vector in the order of their elements, for whoever stores
// or multiplies them. Included once per vector target, but for the scalar one; by files that are
// compiled with -ffp-contract=off, since products and sums of weights are rounded one by one.
//
// A format has
//
//   kElements, kBytes     of a block
//   kPiece                elements that are unpacked together
//   Block(const uint8_t*) what its pieces share
//   Unpack(block, piece, sink)  calls sink(first, weights) for the vectors of a piece; `first` is
//                               that of the vector within the piece
#if defined(LAPIDARY_OPS_CPU_UNPACK_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAPIDARY_OPS_CPU_UNPACK_BLOCKS_INL_H_
#undef LAPIDARY_OPS_CPU_UNPACK_BLOCKS_INL_H_
#else
#define LAPIDARY_OPS_CPU_UNPACK_BLOCKS_INL_H_
#endif

#include <hwy/highway.h>

#include "base/check.h"
#include "tensor/block_formats.h"
#include "tensor/half_values.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace unpack {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;
using Codes = hn::Rebind<int32_t, Floats>;
using CodeVec = hn::Vec<Codes>;
using Bytes = hn::Full128<uint8_t>;
using ByteVec = hn::Vec<Bytes>;
using WideBytes = hn::CappedTag<uint8_t, 32>;
using WideByteVec = hn::Vec<WideBytes>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats()));
constexpr int kParts = 16 / kLanes;  // vectors of 16 elements
static_assert(kParts >= 1 && kParts * kLanes == 16);

// A half in every lane: looked up, it is spread as it is loaded. Converting it takes shuffles,
// which are what limits AVX-512.
HWY_INLINE FloatVec SetHalf(const uint8_t* at) {
  uint16_t half;
  hwy::CopyBytes<2>(at, &half);
  return hn::Set(Floats(), kHalfValues[half]);
}

HWY_INLINE FloatVec SetAll(float value) { return hn::Set(Floats(), value); }

// kCount values of 8 bits, each times `scale`, plus `offset` if there is one.
template <int kCount, bool kHasOffset, class Sink>
HWY_INLINE void UnpackBytes(const int8_t* HWY_RESTRICT q, int first, FloatVec scale,
                            FloatVec offset, const Sink& sink) {
  const Floats d;
  const hn::Rebind<int8_t, Floats> bytes;
  HWY_UNROLL(8) for (int idx = 0; idx < kCount; idx += kLanes) {
    const FloatVec values = hn::ConvertTo(d, hn::PromoteTo(Codes(), hn::LoadU(bytes, q + idx)));
    // A product that an offset is added to is exact (scales have at most 17 bits, codes 5), so
    // rounding it by itself would change nothing.
    sink(first + idx, kHasOffset ? hn::MulAdd(values, scale, offset) : hn::Mul(values, scale));
  }
}

template <class Vec>
HWY_INLINE void StoreCodes(Vec codes, int8_t* q) {
  hn::StoreU(codes, hn::DFromV<Vec>(), reinterpret_cast<uint8_t*>(q));
}

// Makes the compiler load codes from where they were stored. GCC would rather shift them about in
// registers, which takes more instructions.
template <int kCount>
HWY_INLINE void KeepInMemory(int8_t (&q)[kCount]) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  asm("" : "+m"(q));
#else
  static_cast<void>(q);
#endif
}

// What the 16 codes of 4 bits stand for.
#if HWY_TARGET <= HWY_AVX3

// A vector that holds all of them: one permutation does what conversion and arithmetic would.
class NibbleValues {
 public:
  explicit HWY_INLINE NibbleValues(FloatVec table) : table_(table) {}
  // d * (q - zero)
  static HWY_INLINE NibbleValues Scaled(FloatVec scale, int zero) {
    const Floats d;
    return NibbleValues(
        hn::Mul(hn::Sub(hn::Iota(d, 0.0f), hn::Set(d, static_cast<float>(zero))), scale));
  }
  // d * q + m
  static HWY_INLINE NibbleValues Shifted(FloatVec scale, FloatVec offset) {
    return NibbleValues(hn::MulAdd(hn::Iota(Floats(), 0.0f), scale, offset));  // an exact product
  }
  static HWY_INLINE NibbleValues Iq4(FloatVec scale) {
    const hn::Rebind<int8_t, Floats> bytes;
    const auto values = hn::PromoteTo(Codes(), hn::LoadU(bytes, kIq4Values));
    return NibbleValues(hn::Mul(hn::ConvertTo(Floats(), values), scale));
  }
  // Of the lowest and of the next four bits.
  HWY_INLINE FloatVec OfLow(CodeVec bytes) const {
    return FloatVec{_mm512_permutexvar_ps(bytes.raw, table_.raw)};
  }
  HWY_INLINE FloatVec OfHigh(CodeVec bytes) const { return OfLow(hn::ShiftRight<4>(bytes)); }

 private:
  FloatVec table_;
};

#else

class NibbleValues {
 public:
  // As a product and a sum that are both exact; zeros have no sign of their own.
  static HWY_INLINE NibbleValues Scaled(FloatVec scale, int zero) {
    return Shifted(scale, hn::Mul(scale, SetAll(static_cast<float>(-zero))));
  }
  static HWY_INLINE NibbleValues Shifted(FloatVec scale, FloatVec offset) {
    return NibbleValues(scale, offset, /*is_iq4=*/false);
  }
  static HWY_INLINE NibbleValues Iq4(FloatVec scale) {
    return NibbleValues(scale, hn::Zero(Floats()), /*is_iq4=*/true);
  }
  // Of the lowest and of the next four bits, the last ones that are set.
  HWY_INLINE FloatVec OfLow(CodeVec bytes) const {
    return Of(hn::And(bytes, hn::Set(Codes(), 15)));
  }
  HWY_INLINE FloatVec OfHigh(CodeVec bytes) const { return Of(hn::ShiftRight<4>(bytes)); }

 private:
  HWY_INLINE NibbleValues(FloatVec scale, FloatVec offset, bool is_iq4)
      : scale_(scale), offset_(offset), is_iq4_(is_iq4) {}

  HWY_INLINE FloatVec Of(CodeVec codes) const {
    const Floats d;
    if (!is_iq4_) return hn::MulAdd(hn::ConvertTo(d, codes), scale_, offset_);  // exact product
    // The lookup's other three bytes of a lane are those of code 0; the sign comes from the shift.
    const hn::Repartition<uint8_t, Codes> bytes;
    const auto table = hn::LoadDup128(bytes, reinterpret_cast<const uint8_t*>(kIq4Values));
    const auto found = hn::TableLookupBytes(table, hn::BitCast(bytes, codes));
    const CodeVec values = hn::ShiftRight<24>(hn::ShiftLeft<24>(hn::BitCast(Codes(), found)));
    return hn::Mul(hn::ConvertTo(d, values), scale_);
  }

  FloatVec scale_;
  FloatVec offset_;
  bool is_iq4_;  // known where it is made, so no code is left of it
};

#endif

// kCount bytes: the codes in their low halves.
template <int kCount, class Sink>
HWY_INLINE void UnpackLow(const uint8_t* HWY_RESTRICT nibbles, int first,
                          const NibbleValues& values, const Sink& sink) {
  const hn::Rebind<uint8_t, Floats> bytes;
  HWY_UNROLL(8) for (int idx = 0; idx < kCount; idx += kLanes) {
    sink(first + idx, values.OfLow(hn::PromoteTo(Codes(), hn::LoadU(bytes, nibbles + idx))));
  }
}
template <int kCount, class Sink>
HWY_INLINE void UnpackHigh(const uint8_t* HWY_RESTRICT nibbles, int first,
                           const NibbleValues& values, const Sink& sink) {
  const hn::Rebind<uint8_t, Floats> bytes;
  HWY_UNROLL(8) for (int idx = 0; idx < kCount; idx += kLanes) {
    sink(first + idx, values.OfHigh(hn::PromoteTo(Codes(), hn::LoadU(bytes, nibbles + idx))));
  }
}

// Bits 4 of 16 codes, from 16 bits: byte i tells bit i % 8 of byte i / 8.
HWY_INLINE ByteVec FifthBits(const uint8_t* bits) {
  const Bytes d;
  alignas(16) static constexpr uint8_t kByte[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  alignas(16) static constexpr uint8_t kBit[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                   1, 2, 4, 8, 16, 32, 64, 128};
  alignas(16) uint8_t both[16] = {bits[0], bits[1]};
  const ByteVec spread = hn::TableLookupBytes(hn::Load(d, both), hn::Load(d, kByte));
  const ByteVec bit = hn::Load(d, kBit);
  const auto is_set = hn::Eq(hn::And(spread, bit), bit);
  return hn::IfThenElseZero(is_set, hn::Set(d, uint8_t{16}));
}

// Formats whose blocks are one piece of 32 elements.
struct OnePiece {
  static constexpr int kElements = 32;
  static constexpr int kPiece = 32;
  using Block = const uint8_t*;
};

// Q4_0, Q4_1.
template <bool kHasMin>
struct FourBits : OnePiece {
  static constexpr int kBytes = kHasMin ? 20 : 18;

  template <class Sink>
  static HWY_INLINE void Unpack(const uint8_t* block, int, const Sink& sink) {
    const FloatVec scale = SetHalf(block);
    const NibbleValues values =
        kHasMin ? NibbleValues::Shifted(scale, SetHalf(block + 2)) : NibbleValues::Scaled(scale, 8);
    UnpackLow<16>(block + kBytes - 16, 0, values, sink);
    UnpackHigh<16>(block + kBytes - 16, 16, values, sink);
  }
};

struct Iq4Nl : OnePiece {
  static constexpr int kBytes = 18;

  template <class Sink>
  static HWY_INLINE void Unpack(const uint8_t* block, int, const Sink& sink) {
    const NibbleValues values = NibbleValues::Iq4(SetHalf(block));
    UnpackLow<16>(block + 2, 0, values, sink);
    UnpackHigh<16>(block + 2, 16, values, sink);
  }
};

// Q5_0, Q5_1.
template <bool kHasMin>
struct FiveBits : OnePiece {
  static constexpr int kBytes = kHasMin ? 24 : 22;

  template <class Sink>
  static HWY_INLINE void Unpack(const uint8_t* block, int, const Sink& sink) {
    const Bytes d;
    const uint8_t* fifth = block + (kHasMin ? 4 : 2);
    const ByteVec nibbles = hn::LoadU(d, block + kBytes - 16);
    ByteVec low = hn::Or(hn::And(nibbles, hn::Set(d, uint8_t{15})), FifthBits(fifth));
    ByteVec high = hn::Or(hn::ShiftRight<4>(nibbles), FifthBits(fifth + 2));
    if constexpr (!kHasMin) {
      low = hn::Sub(low, hn::Set(d, uint8_t{16}));
      high = hn::Sub(high, hn::Set(d, uint8_t{16}));
    }
    HWY_ALIGN int8_t q[32];
    StoreCodes(low, q);
    StoreCodes(high, q + 16);
    KeepInMemory(q);
    UnpackBytes<32, kHasMin>(q, 0, SetHalf(block), kHasMin ? SetHalf(block + 2) : SetAll(0.0f),
                             sink);
  }
};

struct EightBits : OnePiece {
  static constexpr int kBytes = 34;

  template <class Sink>
  static HWY_INLINE void Unpack(const uint8_t* block, int, const Sink& sink) {
    UnpackBytes<32, false>(reinterpret_cast<const int8_t*>(block + 2), 0, SetHalf(block),
                           SetAll(0.0f), sink);
  }
};

// Q4_K, Q5_K: a piece is a pair of runs, in the low and the high halves of 32 bytes.
template <bool kHasFifthBit>
struct KBits {
  static constexpr int kElements = 256;
  static constexpr int kBytes = kHasFifthBit ? 176 : 144;
  static constexpr int kPiece = 64;

  struct Block {
    explicit HWY_INLINE Block(const uint8_t* bytes) : block(bytes) {
      uint32_t packed[3];
      hwy::CopyBytes<12>(bytes + 4, packed);
      // As UnpackKScales, four at a time.
      const uint32_t six[4] = {
          packed[0] & 0x3f3f3f3f,
          (packed[2] & 0x0f0f0f0f) | (packed[0] >> 6 & 0x03030303) << 4,
          packed[1] & 0x3f3f3f3f,
          (packed[2] >> 4 & 0x0f0f0f0f) | (packed[1] >> 6 & 0x03030303) << 4,
      };
      const hn::Rebind<uint8_t, Floats> codes;
      const auto* values = reinterpret_cast<const uint8_t*>(six);
      const FloatVec unit = SetHalf(bytes);
      const FloatVec offset_unit = hn::Neg(SetHalf(bytes + 2));
      for (int idx = 0; idx < 16; idx += kLanes) {
        const FloatVec units = kLanes > 8 ? hn::ConcatUpperLower(Floats(), offset_unit, unit)
                               : idx < 8  ? unit
                                          : offset_unit;
        const CodeVec ints = hn::PromoteTo(Codes(), hn::LoadU(codes, values + idx));
        hn::Store(hn::Mul(hn::ConvertTo(Floats(), ints), units), Floats(), scale_and_offset + idx);
      }
    }
    const uint8_t* block;
    HWY_ALIGN float scale_and_offset[16];  // 8 of each
  };

  template <class Sink>
  static HWY_INLINE void Unpack(const Block& block, int pair, const Sink& sink) {
    const uint8_t* nibbles = block.block + kBytes - 128 + pair * 32;
    const float* scales = block.scale_and_offset + 2 * pair;
    const FloatVec scale[2] = {SetAll(scales[0]), SetAll(scales[1])};
    const FloatVec offset[2] = {SetAll(scales[8]), SetAll(scales[9])};
    if constexpr (!kHasFifthBit) {
      UnpackLow<32>(nibbles, 0, NibbleValues::Shifted(scale[0], offset[0]), sink);
      UnpackHigh<32>(nibbles, 32, NibbleValues::Shifted(scale[1], offset[1]), sink);
    } else {
      const WideBytes d;
      HWY_ALIGN int8_t q[64];
      for (size_t at = 0; at < 32; at += hn::Lanes(d)) {
        const WideByteVec codes = hn::LoadU(d, nibbles + at);
        const WideByteVec bits = hn::LoadU(d, block.block + 16 + at);
        const auto bit16 = [&](int run) {
          const WideByteVec mask = hn::Set(d, static_cast<uint8_t>(1 << run));
          return hn::IfThenElseZero(hn::Eq(hn::And(bits, mask), mask), hn::Set(d, uint8_t{16}));
        };
        StoreCodes(hn::Or(hn::And(codes, hn::Set(d, uint8_t{15})), bit16(2 * pair)), q + at);
        StoreCodes(hn::Or(hn::ShiftRight<4>(codes), bit16(2 * pair + 1)), q + 32 + at);
      }
      KeepInMemory(q);
      UnpackBytes<32, true>(q, 0, scale[0], offset[0], sink);
      UnpackBytes<32, true>(q + 32, 32, scale[1], offset[1], sink);
    }
  }
};

// Q6_K: a piece is a half of 128 elements, in quarters of 32, in runs of 16 (block_formats.cc).
struct SixBits {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 210;
  static constexpr int kPiece = 128;

  struct Block {
    explicit HWY_INLINE Block(const uint8_t* bytes) : block(bytes) {
      UnpackBytes<16, false>(
          reinterpret_cast<const int8_t*>(bytes + 192), 0, SetHalf(bytes + 208), SetAll(0.0f),
          [&](int first, FloatVec scales) { hn::Store(scales, Floats(), scale + first); });
    }
    const uint8_t* block;
    HWY_ALIGN float scale[16];
  };

  template <class Sink>
  static HWY_INLINE void Unpack(const Block& block, int half, const Sink& sink) {
    const WideBytes d;
    const uint8_t* low = block.block + half * 64;
    const uint8_t* high = block.block + 128 + half * 32;
    HWY_ALIGN int8_t q[128];
    const auto code = [&](WideByteVec nibbles, WideByteVec top) {
      const WideByteVec both = hn::Or(nibbles, hn::And(top, hn::Set(d, uint8_t{0x30})));
      return hn::Sub(both, hn::Set(d, uint8_t{32}));
    };
    for (size_t at = 0; at < 32; at += hn::Lanes(d)) {
      const WideByteVec tops = hn::LoadU(d, high + at);
      const WideByteVec first = hn::LoadU(d, low + at);
      const WideByteVec second = hn::LoadU(d, low + 32 + at);
      const WideByteVec mask = hn::Set(d, uint8_t{15});
      StoreCodes(code(hn::And(first, mask), hn::ShiftLeft<4>(tops)), q + at);
      StoreCodes(code(hn::And(second, mask), hn::ShiftLeft<2>(tops)), q + 32 + at);
      StoreCodes(code(hn::ShiftRight<4>(first), tops), q + 64 + at);
      StoreCodes(code(hn::ShiftRight<4>(second), hn::ShiftRight<2>(tops)), q + 96 + at);
    }
    KeepInMemory(q);
    HWY_UNROLL(8) for (int run = 0; run < 8; ++run) {
      UnpackBytes<16, false>(q + run * 16, run * 16, SetAll(block.scale[half * 8 + run]),
                             SetAll(0.0f), sink);
    }
  }
};

struct Iq4Xs {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 136;
  static constexpr int kPiece = 32;
  using Block = const uint8_t*;

  template <class Sink>
  static HWY_INLINE void Unpack(const uint8_t* block, int run, const Sink& sink) {
    const int high = block[2] | block[3] << 8;
    const int code = (block[4 + run / 2] >> run % 2 * 4 & 15) | (high >> 2 * run & 3) << 4;
    const NibbleValues values =
        NibbleValues::Iq4(hn::Mul(SetHalf(block), SetAll(static_cast<float>(code - 32))));
    UnpackLow<16>(block + 8 + run * 16, 0, values, sink);
    UnpackHigh<16>(block + 8 + run * 16, 16, values, sink);
  }
};

// body(Format()) for the format of a type.
template <class Body>
HWY_INLINE void WithFormat(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kQ4_0:
      return body(FourBits<false>());
    case DType::kQ4_1:
      return body(FourBits<true>());
    case DType::kQ5_0:
      return body(FiveBits<false>());
    case DType::kQ5_1:
      return body(FiveBits<true>());
    case DType::kQ8_0:
      return body(EightBits());
    case DType::kQ4_K:
      return body(KBits<false>());
    case DType::kQ5_K:
      return body(KBits<true>());
    case DType::kQ6_K:
      return body(SixBits());
    case DType::kIQ4_NL:
      return body(Iq4Nl());
    case DType::kIQ4_XS:
      return body(Iq4Xs());
    default:
      CHECK(false) << DTypeName(dtype) << " has no blocks";
  }
}

}  // namespace unpack
}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET != HWY_SCALAR
#endif
