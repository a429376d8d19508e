// The input of a product with tiled weights, as integers of two digits: what lets tensor cores
// multiply the weights' codes as they are, bytes, without making floats of them.
//
// Of 128 neighbouring values the largest decides a scale, a power of two:
//
//   x = scale * (256 * high + low),  high in -64 .. 64, low in -128 .. 127
//
// so values are rounded to multiples of 2^-14 of the largest's power of two. In shared memory,
// chunk by chunk of 32 values:
//
//   int8 digits[2][4][8]    high or low digit, quarter t: of values 8 t .. 8 t + 7, in the order in
//                           which codes become bytes (CodesAsBytes)
//
// Behind those of all chunks, f32 scales [chunks]. Padded with zeros to 128 values.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"
#include "ops/cuda/tile_type.h"

namespace lapidary::cuda {

inline constexpr int kDigitGroup = 128;      // values under one scale: four to a lane
inline constexpr int kDigitChunkBytes = 64;  // of 32 values
inline constexpr int kDigitPlaneBytes = 32;  // of one of the digits

// From the digits to the scales.
LAPIDARY_HOST_DEVICE constexpr int DigitScalesPlace(int num_values) {
  return (num_values + kDigitGroup - 1) / kDigitGroup * (2 * kDigitGroup);
}
LAPIDARY_HOST_DEVICE constexpr int DigitBytes(int num_values) {
  return DigitScalesPlace(num_values) / kDigitChunkBytes *
         (kDigitChunkBytes + static_cast<int>(sizeof(float)));
}

LAPIDARY_HOST_DEVICE_INLINE uint32_t BitsOf(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}
LAPIDARY_HOST_DEVICE_INLINE float FloatOf(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}
// Four of the eight bytes of two words, a digit of `picks` each.
LAPIDARY_HOST_DEVICE_INLINE uint32_t PickBytes(uint32_t low, uint32_t high, uint32_t picks) {
#ifdef __CUDA_ARCH__
  return __byte_perm(low, high, picks);
#else
  const uint64_t bytes = low | uint64_t{high} << 32;
  uint32_t picked = 0;
  for (int at = 0; at < 32; at += 8) {
    picked |= static_cast<uint32_t>(bytes >> (picks >> (at / 2) & 7) * 8 & 0xff) << at;
  }
  return picked;
#endif
}

// How a group becomes integers: x * to_integer, back by `scale`.
struct DigitScale {
  float to_integer;
  float scale;

  // `largest`: the bits of the largest size in the group. Where that is no number, so is the scale.
  // What is below 2^-109 becomes 0. Bytes of codes of 4 bits are 16-fold (CodesAsBytes).
  LAPIDARY_HOST_DEVICE_INLINE DigitScale(uint32_t largest, TileType format) {
    constexpr uint32_t kBias = 127;
    constexpr uint32_t kBits = 13;
    const uint32_t exponent = largest >> 23 > kBits + 5 ? largest >> 23 : kBits + 5;
    to_integer = FloatOf((2 * kBias + kBits - exponent) << 23);
    const uint32_t shift = Is4Bit(format) ? kBits + 4 : kBits;
    scale = FloatOf(largest >= 0x7f800000u ? 0x7fffffffu : (exponent - shift) << 23);
  }
};

// Those of four values, a byte each.
struct Digits {
  uint32_t high;
  uint32_t low;

  LAPIDARY_HOST_DEVICE_INLINE Digits(float x, float y, float z, float w, float to_integer) {
    // The lowest 16 bits of these floats are the integer plus 128: high digit, low digit + 128.
    constexpr float kMagic = 12582912.0f + 128.0f;
    const auto bits = [&](float value) { return BitsOf(fmaf(value, to_integer, kMagic)); };
    const uint32_t front = PickBytes(bits(x), bits(y), 0x5410);
    const uint32_t back = PickBytes(bits(z), bits(w), 0x5410);
    high = PickBytes(front, back, 0x7531);
    low = PickBytes(front, back, 0x6420) ^ 0x80808080u;
  }
};

// word & 0xf0f0f0f0 ^ 0x80808080, in one instruction.
LAPIDARY_HOST_DEVICE_INLINE uint32_t HighNibblesSigned(uint32_t word) {
#ifdef __CUDA_ARCH__
  uint32_t result;
  asm("lop3.b32 %0, %1, 0xf0f0f0f0, 0x80808080, 0x6a;" : "=r"(result) : "r"(word));
  return result;
#else
  return (word & 0xf0f0f0f0u) ^ 0x80808080u;
#endif
}

// A row's codes of 8 columns as signed bytes, four in each word: of 4 bits 16 (code - 8).
struct CodesAsBytes {
  uint32_t first;
  uint32_t second;

  LAPIDARY_HOST_DEVICE_INLINE explicit CodesAsBytes(uint32_t codes_of_4_bits)
      : first(HighNibblesSigned(codes_of_4_bits << 4)),
        second(HighNibblesSigned(codes_of_4_bits)) {}
  LAPIDARY_HOST_DEVICE_INLINE CodesAsBytes(uint32_t front, uint32_t back)
      : first(front ^ 0x80808080u), second(back ^ 0x80808080u) {}
};

// The columns of those bytes, of 8 values' digits: picks of the first four's and the others'
// (tensor/weight_tiles.h).
struct DigitOrder {
  uint32_t first;
  uint32_t second;

  LAPIDARY_HOST_DEVICE_INLINE explicit DigitOrder(TileType format)
      : first(Is4Bit(format) ? 0x5140 : 0x3120), second(Is4Bit(format) ? 0x7362 : 0x7564) {}
};

}  // namespace lapidary::cuda
