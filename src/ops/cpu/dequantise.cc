#include "ops/cpu/dequantise.h"

#include "base/check.h"
#include "tensor/block_formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/dequantise.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

void DequantiseBlocks(DType dtype, const uint8_t* blocks, int64_t num_elements, float* out) {
  Dequantise(dtype, blocks, num_elements, out);
}

#else

using Floats = hn::ScalableTag<float>;
using Bytes = hn::Full128<uint8_t>;
using ByteVec = hn::Vec<Bytes>;

HWY_INLINE float LoadHalf(const uint8_t* at) {
  const hn::CappedTag<float, 1> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  hwy::float16_t value;
  hwy::CopyBytes<2>(at, &value);
  return hn::GetLane(hn::PromoteTo(d, hn::LoadU(half, &value)));
}

// out[kCount] = scale * q + offset, the product and the sum rounded one by one.
template <int kCount, bool kHasOffset>
HWY_INLINE void StoreRun(const int8_t* HWY_RESTRICT q, float scale, float offset,
                         float* HWY_RESTRICT out) {
  const Floats d;
  const hn::Rebind<int32_t, Floats> ints;
  const hn::Rebind<int8_t, Floats> bytes;
  for (size_t idx = 0; idx < kCount; idx += hn::Lanes(d)) {
    const auto values = hn::ConvertTo(d, hn::PromoteTo(ints, hn::LoadU(bytes, q + idx)));
    auto products = hn::Mul(values, hn::Set(d, scale));
    if constexpr (kHasOffset) products = hn::Add(products, hn::Set(d, offset));
    hn::StoreU(products, d, out + idx);
  }
}

HWY_INLINE void StoreCodes(ByteVec codes, int8_t* q) {
  hn::StoreU(codes, Bytes(), reinterpret_cast<uint8_t*>(q));
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

// Q4_0, Q4_1, Q5_0, Q5_1.
template <bool kHasMin, bool kHasFifthBit>
struct SimpleFormat {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 18 + (kHasMin ? 2 : 0) + (kHasFifthBit ? 4 : 0);

  static HWY_INLINE void Store(const uint8_t* block, float* out) {
    const Bytes d;
    const uint8_t* fifth = block + (kHasMin ? 4 : 2);
    const ByteVec nibbles = hn::LoadU(d, block + kBytes - 16);
    ByteVec low = hn::And(nibbles, hn::Set(d, uint8_t{15}));
    ByteVec high = hn::ShiftRight<4>(nibbles);
    if constexpr (kHasFifthBit) {
      low = hn::Or(low, FifthBits(fifth));
      high = hn::Or(high, FifthBits(fifth + 2));
    }
    if constexpr (!kHasMin) {
      const ByteVec zero = hn::Set(d, uint8_t{kHasFifthBit ? 16 : 8});
      low = hn::Sub(low, zero);
      high = hn::Sub(high, zero);
    }
    HWY_ALIGN int8_t q[32];
    StoreCodes(low, q);
    StoreCodes(high, q + 16);
    StoreRun<32, kHasMin>(q, LoadHalf(block), kHasMin ? LoadHalf(block + 2) : 0.0f, out);
  }
};

struct Q8Format {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 34;

  static HWY_INLINE void Store(const uint8_t* block, float* out) {
    StoreRun<32, false>(reinterpret_cast<const int8_t*>(block + 2), LoadHalf(block), 0.0f, out);
  }
};

// Q4_K, Q5_K.
template <bool kHasFifthBit>
struct KFormat {
  static constexpr int kElements = 256;
  static constexpr int kBytes = kHasFifthBit ? 176 : 144;

  static HWY_INLINE void Store(const uint8_t* block, float* out) {
    const Bytes d;
    const float scale = LoadHalf(block);
    const float min_scale = LoadHalf(block + 2);
    const KScales scales = UnpackKScales(block + 4);
    const uint8_t* fifth = block + 16;
    const uint8_t* nibbles = block + kBytes - 128;
    HWY_ALIGN int8_t q[64];
    for (int pair = 0; pair < 4; ++pair) {
      for (int half = 0; half < 2; ++half) {
        const ByteVec codes = hn::LoadU(d, nibbles + pair * 32 + half * 16);
        ByteVec low = hn::And(codes, hn::Set(d, uint8_t{15}));
        ByteVec high = hn::ShiftRight<4>(codes);
        if constexpr (kHasFifthBit) {
          const ByteVec bits = hn::LoadU(d, fifth + half * 16);
          const auto bit16 = [&](int run) {
            const ByteVec mask = hn::Set(d, static_cast<uint8_t>(1 << run));
            return hn::IfThenElseZero(hn::Eq(hn::And(bits, mask), mask), hn::Set(d, uint8_t{16}));
          };
          low = hn::Or(low, bit16(2 * pair));
          high = hn::Or(high, bit16(2 * pair + 1));
        }
        StoreCodes(low, q + half * 16);
        StoreCodes(high, q + 32 + half * 16);
      }
      for (int run = 2 * pair; run < 2 * pair + 2; ++run) {
        StoreRun<32, true>(q + run % 2 * 32, scale * static_cast<float>(scales.scale[run]),
                           -(min_scale * static_cast<float>(scales.min[run])), out + run * 32);
      }
    }
  }
};

struct Q6KFormat {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 210;

  static HWY_INLINE void Store(const uint8_t* block, float* out) {
    const Bytes d;
    const auto* scales = reinterpret_cast<const int8_t*>(block + 192);
    const float scale = LoadHalf(block + 208);
    const ByteVec zero = hn::Set(d, uint8_t{32});
    HWY_ALIGN int8_t q[16];
    for (int run = 0; run < 16; ++run) {
      // Runs of 16 in quarters of 32 in halves of 128 (block_formats.cc).
      const int half = run / 8;
      const int quarter = run / 2 % 4;
      const ByteVec low = hn::LoadU(d, block + half * 64 + run % 4 * 16);
      const ByteVec high = hn::LoadU(d, block + 128 + half * 32 + run % 2 * 16);
      const ByteVec nibbles =
          quarter < 2 ? hn::And(low, hn::Set(d, uint8_t{15})) : hn::ShiftRight<4>(low);
      const ByteVec moved = quarter == 0   ? hn::ShiftLeft<4>(high)
                            : quarter == 1 ? hn::ShiftLeft<2>(high)
                            : quarter == 2 ? high
                                           : hn::ShiftRight<2>(high);
      StoreCodes(hn::Sub(hn::Or(nibbles, hn::And(moved, hn::Set(d, uint8_t{0x30}))), zero), q);
      StoreRun<16, false>(q, scale * static_cast<float>(scales[run]), 0.0f, out + run * 16);
    }
  }
};

// 32 codes of IQ4_NL or IQ4_XS.
HWY_INLINE void StoreIq4(const uint8_t* codes, float scale, float* out) {
  const Bytes d;
  const ByteVec table = hn::LoadU(d, reinterpret_cast<const uint8_t*>(kIq4Values));
  const ByteVec nibbles = hn::LoadU(d, codes);
  HWY_ALIGN int8_t q[32];
  StoreCodes(hn::TableLookupBytes(table, hn::And(nibbles, hn::Set(d, uint8_t{15}))), q);
  StoreCodes(hn::TableLookupBytes(table, hn::ShiftRight<4>(nibbles)), q + 16);
  StoreRun<32, false>(q, scale, 0.0f, out);
}

struct Iq4NlFormat {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 18;

  static HWY_INLINE void Store(const uint8_t* block, float* out) {
    StoreIq4(block + 2, LoadHalf(block), out);
  }
};

struct Iq4XsFormat {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 136;

  static HWY_INLINE void Store(const uint8_t* block, float* out) {
    const float scale = LoadHalf(block);
    const int high = block[2] | block[3] << 8;
    for (int run = 0; run < 8; ++run) {
      const int code = (block[4 + run / 2] >> run % 2 * 4 & 15) | (high >> 2 * run & 3) << 4;
      StoreIq4(block + 8 + run * 16, scale * static_cast<float>(code - 32), out + run * 32);
    }
  }
};

template <typename Format>
void StoreBlocks(const uint8_t* HWY_RESTRICT blocks, int64_t num_elements,
                 float* HWY_RESTRICT out) {
  for (int64_t begin = 0; begin < num_elements; begin += Format::kElements) {
    Format::Store(blocks, out + begin);
    blocks += Format::kBytes;
  }
}

void DequantiseBlocks(DType dtype, const uint8_t* blocks, int64_t num_elements, float* out) {
  switch (dtype) {
    case DType::kQ4_0:
      return StoreBlocks<SimpleFormat<false, false> >(blocks, num_elements, out);
    case DType::kQ4_1:
      return StoreBlocks<SimpleFormat<true, false> >(blocks, num_elements, out);
    case DType::kQ5_0:
      return StoreBlocks<SimpleFormat<false, true> >(blocks, num_elements, out);
    case DType::kQ5_1:
      return StoreBlocks<SimpleFormat<true, true> >(blocks, num_elements, out);
    case DType::kQ8_0:
      return StoreBlocks<Q8Format>(blocks, num_elements, out);
    case DType::kQ4_K:
      return StoreBlocks<KFormat<false> >(blocks, num_elements, out);
    case DType::kQ5_K:
      return StoreBlocks<KFormat<true> >(blocks, num_elements, out);
    case DType::kQ6_K:
      return StoreBlocks<Q6KFormat>(blocks, num_elements, out);
    case DType::kIQ4_NL:
      return StoreBlocks<Iq4NlFormat>(blocks, num_elements, out);
    case DType::kIQ4_XS:
      return StoreBlocks<Iq4XsFormat>(blocks, num_elements, out);
    default:
      CHECK(false) << DTypeName(dtype) << " has no blocks";
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(DequantiseBlocks);

void DequantiseRows(const MatrixRef& w, int64_t first, int64_t count, float* out) {
  CHECK(0 <= first && 0 <= count && first + count <= w.rows) << first << " + " << count;
  CHECK_EQ(w.cols % BlockOf(w.dtype).elements, 0) << DTypeName(w.dtype);
  HWY_DYNAMIC_DISPATCH(DequantiseBlocks)
  (w.dtype, w.As<uint8_t>() + first * w.row_bytes(), count * w.cols, out);
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
