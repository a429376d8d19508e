// Eight values of a row in GGUF blocks (block_formats.h), decoded where they are needed: for CUDA
// kernels that gather rows of a table as it is stored, and for the host that tests them.
//
// Values are those of Dequantise, bit for bit: products and sums are rounded one by one.
#pragma once

#include <cstdint>
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

#include "base/host_device.h"
#include "tensor/dtype.h"

namespace lapidary {

// The fields of one block, which lies at an even address.
class BlockBytes {
 public:
  LAPIDARY_HOST_DEVICE_INLINE explicit BlockBytes(const uint8_t* bytes) : bytes_(bytes) {}

  LAPIDARY_HOST_DEVICE_INLINE int operator[](int at) const { return bytes_[at]; }
  LAPIDARY_HOST_DEVICE_INLINE int Signed(int at) const { return static_cast<int8_t>(bytes_[at]); }
  LAPIDARY_HOST_DEVICE_INLINE int Word(int at) const { return bytes_[at] | bytes_[at + 1] << 8; }
  LAPIDARY_HOST_DEVICE_INLINE int Bit(int at, int bit) const {
    return bytes_[at + bit / 8] >> bit % 8 & 1;
  }
  LAPIDARY_HOST_DEVICE_INLINE float Half(int at) const {
    const auto bits = static_cast<uint16_t>(Word(at));
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(bits));
#else
    return F16ToFloat(bits);
#endif
  }

 private:
  const uint8_t* bytes_;
};

LAPIDARY_HOST_DEVICE_INLINE float RoundedProduct(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
LAPIDARY_HOST_DEVICE_INLINE float RoundedSum(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// What code `code` of IQ4_NL and IQ4_XS stands for: a byte of one of two words, so that a kernel
// needs no table in memory.
LAPIDARY_HOST_DEVICE_INLINE int Iq4Value(int code) {
  const uint64_t values = code < 8 ? 0xf6eaddcfbfad9881u : 0x7159453526190d01u;
  return static_cast<int8_t>(values >> 8 * (code % 8));
}

// The scale and the minimum of run `run` of a block of Q4_K or Q5_K.
struct RunScale {
  float scale;
  float minimum;
};
LAPIDARY_HOST_DEVICE_INLINE RunScale KBlockScale(const BlockBytes& block, int run) {
  constexpr int kScales = 4;  // where the 12 bytes of them begin
  int scale = block[kScales + run] & 63;
  int minimum = block[kScales + run + 4] & 63;
  if (run >= 4) {
    scale = (block[kScales + run + 4] & 15) | (block[kScales + run - 4] >> 2 & 0x30);
    minimum = block[kScales + run + 4] >> 4 | (block[kScales + run] >> 2 & 0x30);
  }
  return {RoundedProduct(block.Half(0), static_cast<float>(scale)),
          -RoundedProduct(block.Half(2), static_cast<float>(minimum))};
}

// Columns at .. at + 7 of a row in blocks of `type` (IsBlockDType); `at` is a multiple of 8, `row`
// its first byte. Runs of equal scale are whole eights in every type.
LAPIDARY_HOST_DEVICE_INLINE void LoadBlockValues8(DType type, const uint8_t* row, int at,
                                                  float (&values)[8]) {
  // Of 32 codes of 4 bits in 16 bytes, the first 16 are the low halves.
  const auto nibble = [](const BlockBytes& block, int first, int idx) {
    return block[first + idx % 16] >> idx / 16 * 4 & 15;
  };
  const auto scaled = [&values](int idx, float scale, int code) {
    values[idx] = RoundedProduct(scale, static_cast<float>(code));
  };
  const auto with_minimum = [&values](int idx, const RunScale& run, int code) {
    values[idx] = RoundedSum(RoundedProduct(run.scale, static_cast<float>(code)), run.minimum);
  };
  const int in = at % 32;         // within a block of 32, or a run of 32
  const int run = at % 256 / 32;  // of a block of 256
  switch (type) {
    case DType::kQ4_0: {
      const BlockBytes block(row + at / 32 * 18);
      for (int idx = 0; idx < 8; ++idx) scaled(idx, block.Half(0), nibble(block, 2, in + idx) - 8);
      return;
    }
    case DType::kQ4_1: {
      const BlockBytes block(row + at / 32 * 20);
      const RunScale scale{block.Half(0), block.Half(2)};
      for (int idx = 0; idx < 8; ++idx) with_minimum(idx, scale, nibble(block, 4, in + idx));
      return;
    }
    case DType::kQ5_0: {
      const BlockBytes block(row + at / 32 * 22);
      for (int idx = 0; idx < 8; ++idx) {
        const int code = nibble(block, 6, in + idx) | block.Bit(2, in + idx) << 4;
        scaled(idx, block.Half(0), code - 16);
      }
      return;
    }
    case DType::kQ5_1: {
      const BlockBytes block(row + at / 32 * 24);
      const RunScale scale{block.Half(0), block.Half(2)};
      for (int idx = 0; idx < 8; ++idx) {
        with_minimum(idx, scale, nibble(block, 8, in + idx) | block.Bit(4, in + idx) << 4);
      }
      return;
    }
    case DType::kQ8_0: {
      const BlockBytes block(row + at / 32 * 34);
      for (int idx = 0; idx < 8; ++idx) scaled(idx, block.Half(0), block.Signed(2 + in + idx));
      return;
    }
    case DType::kQ4_K: {
      const BlockBytes block(row + at / 256 * 144);
      const RunScale scale = KBlockScale(block, run);
      for (int idx = 0; idx < 8; ++idx) {
        with_minimum(idx, scale, block[16 + run / 2 * 32 + in + idx] >> run % 2 * 4 & 15);
      }
      return;
    }
    case DType::kQ5_K: {
      const BlockBytes block(row + at / 256 * 176);
      const RunScale scale = KBlockScale(block, run);
      for (int idx = 0; idx < 8; ++idx) {
        const int low = block[48 + run / 2 * 32 + in + idx] >> run % 2 * 4 & 15;
        with_minimum(idx, scale, low | (block[16 + in + idx] >> run & 1) << 4);
      }
      return;
    }
    case DType::kQ6_K: {
      // 128 bytes of low halves, 64 of high pairs of bits, 16 scales, a half. Of 128 columns the
      // quarters' codes lie in the halves low, low, high, high of 64 bytes.
      const BlockBytes block(row + at / 256 * 210);
      const float scale =
          RoundedProduct(block.Half(208), static_cast<float>(block.Signed(192 + at % 256 / 16)));
      const int half = run / 4;
      const int quarter = run % 4;
      for (int idx = 0; idx < 8; ++idx) {
        const int low = block[half * 64 + quarter % 2 * 32 + in + idx] >> quarter / 2 * 4 & 15;
        const int high = block[128 + half * 32 + in + idx] >> quarter * 2 & 3;
        scaled(idx, scale, (low | high << 4) - 32);
      }
      return;
    }
    case DType::kIQ4_NL: {
      const BlockBytes block(row + at / 32 * 18);
      for (int idx = 0; idx < 8; ++idx) {
        scaled(idx, block.Half(0), Iq4Value(nibble(block, 2, in + idx)));
      }
      return;
    }
    case DType::kIQ4_XS: {
      const BlockBytes block(row + at / 256 * 136);
      const int low = block[4 + run / 2] >> run % 2 * 4 & 15;
      const int steps = (low | (block.Word(2) >> 2 * run & 3) << 4) - 32;
      const float scale = RoundedProduct(block.Half(0), static_cast<float>(steps));
      for (int idx = 0; idx < 8; ++idx) {
        scaled(idx, scale, Iq4Value(nibble(block, 8 + 16 * run, in + idx)));
      }
      return;
    }
    default:
      return;  // not a block type
  }
}

}  // namespace lapidary
