// Products of tiled weights with an input of digits (resident_digits.h), 16 rows by 128 columns,
// two units, at a time.
//
// A chunk of 32 columns is one integer matrix instruction: codes times digits, exactly. Of its 8
// columns two would do, the high and the low digit of x. With the digits of four chunks side by
// side in B, lane 4 g + t finds in its part of D the sums of x's chunk t, so the instruction of the
// weights' chunk t is the one whose result it takes: each lane scales sums of one chunk, and no
// lane repeats another's work.
#pragma once

#include <cstdint>

#include "ops/cuda/launch.h"
#include "ops/cuda/ptx/mma.cuh"
#include "ops/cuda/resident/resident_digits.h"
#include "ops/cuda/tile_type.h"

namespace lapidary::cuda {

// D [16, 8] = A [16, 32] B [32, 8] of bytes into s32. With g = lane / 4 and t = lane % 4:
//   a: (g, 4t), (g + 8, 4t), (g, 4t + 16), (g + 8, 4t + 16), each with the three to its right
//   b: (4t, g), (4t + 16, g), each with the three below
//   d: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
__device__ __forceinline__ void MultiplyBytes(int (&d)[4], const uint32_t (&a)[4], uint2 b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(0));
}

// number = 256 * high + low, for lanes whose quarter is `chunk`.
__device__ __forceinline__ void JoinDigits(int& number, int high, int low, int quarter, int chunk) {
  asm("{\n"
      "  .reg .pred p;\n"
      "  setp.eq.s32 p, %3, %4;\n"
      "  @p mad.lo.s32 %0, %1, 256, %2;\n"
      "}"
      : "+r"(number)
      : "r"(high), "r"(low), "r"(quarter), "r"(chunk));
}

__device__ __forceinline__ uint32_t LoadShared2(uint32_t shared_address) {
  uint16_t value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(shared_address) : "memory");
  return value;
}

template <TileType kType>
struct DigitTile {
  static constexpr int kLaneBytes = Is4Bit(kType) ? 8 : 16;  // of a stripe's unit
  static constexpr int kUnitBytes = TileUnitBytes(kType);
  static constexpr int kCodeWords = kLaneBytes / 4;

  static constexpr int kPairBytes = 2 * kUnitBytes;

  // Of a lane, for a pair of units of a stripe.
  struct Places {
    uint32_t codes;
    uint32_t scales;
    uint32_t digits;
    uint32_t input_scales;

    __device__ __forceinline__ void Advance(int num_pairs) {
      codes += num_pairs * kPairBytes;
      scales += num_pairs * kPairBytes;
      digits += num_pairs * 4 * kDigitChunkBytes;
      input_scales += num_pairs * 4 * static_cast<int>(sizeof(float));
    }
  };
  struct Stage {
    uint32_t low[2][kCodeWords];  // of the two units: rows g, chunk by chunk
    uint32_t high[2][kCodeWords];
    uint32_t low_scale, high_scale;  // of chunk t, as they are stored
    uint2 digits;
    float input_scale;
  };

  // A pair at `units` in shared memory, of the unit number `unit` on of a row; the input's digits
  // and scales begin there.
  static __device__ __forceinline__ Places PlacesOfLane(int lane, uint32_t units, uint32_t digits,
                                                        uint32_t input_scales, int unit) {
    const int quarter = lane % 4;
    return {.codes = units + lane * kLaneBytes,
            .scales =
                units + quarter / 2 * kUnitBytes + 32 * kLaneBytes + lane / 4 * 4 + quarter % 2 * 2,
            .digits = digits + unit * 2 * kDigitChunkBytes + lane * 8,
            .input_scales = input_scales + (unit * 2 + quarter) * 4};
  }

  // Of two stripes `high` bytes apart. Not `is_pair`: the second unit is not there.
  static __device__ __forceinline__ void Load(Stage& stage, const Places& at, uint32_t high,
                                              int lane, bool is_pair) {
    const int second = is_pair ? kUnitBytes : 0;
    const uint32_t scales = at.scales - (is_pair ? 0 : lane % 4 / 2 * kUnitBytes);
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      LoadCodes(stage.low[unit], at.codes + unit * second);
      LoadCodes(stage.high[unit], at.codes + high + unit * second);
    }
    stage.low_scale = LoadShared2(scales);
    stage.high_scale = LoadShared2(scales + high);
    stage.digits = LoadShared8(at.digits);
    stage.input_scale = __uint_as_float(LoadShared4(at.input_scales));
  }

  // acc += the products of rows g and g + 8 with chunk t of the input. `is_pair`: of both units,
  // else of the first.
  static __device__ __forceinline__ void Multiply(float (&acc)[2], const Stage& stage, int lane,
                                                  bool is_pair) {
    const int quarter = lane % 4;
    int low = 0;
    int high = 0;
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      const CodesAsBytes upper = BytesOf(stage.low[chunk / 2], chunk % 2);
      const CodesAsBytes lower = BytesOf(stage.high[chunk / 2], chunk % 2);
      int sums[4];
      MultiplyBytes(sums, {upper.first, lower.first, upper.second, lower.second}, stage.digits);
      if (chunk == 0) {
        low = 256 * sums[0] + sums[1];
        high = 256 * sums[2] + sums[3];
      } else {
        JoinDigits(low, sums[0], sums[1], quarter, chunk);
        JoinDigits(high, sums[2], sums[3], quarter, chunk);
      }
    }
    const float input_scale = is_pair || quarter < 2 ? stage.input_scale : 0.0f;
    acc[0] = fmaf(static_cast<float>(low), ScaleOf(stage.low_scale) * input_scale, acc[0]);
    acc[1] = fmaf(static_cast<float>(high), ScaleOf(stage.high_scale) * input_scale, acc[1]);
  }

 private:
  static __device__ __forceinline__ void LoadCodes(uint32_t (&codes)[kCodeWords], uint32_t from) {
    if constexpr (kCodeWords == 2) {
      const uint2 words = LoadShared8(from);
      codes[0] = words.x, codes[1] = words.y;
    } else {
      const uint4 words = LoadShared(from);
      codes[0] = words.x, codes[1] = words.y, codes[2] = words.z, codes[3] = words.w;
    }
  }
  // A row's bytes of a chunk of a unit.
  static __device__ __forceinline__ CodesAsBytes BytesOf(const uint32_t (&codes)[kCodeWords],
                                                         int chunk) {
    if constexpr (kCodeWords == 2) {
      return CodesAsBytes(codes[chunk]);
    } else {
      return CodesAsBytes(codes[2 * chunk], codes[2 * chunk + 1]);
    }
  }
  static __device__ __forceinline__ float ScaleOf(uint32_t scale) {
    if constexpr (HasF16Scales(kType)) {
      return __half2float(__ushort_as_half(static_cast<uint16_t>(scale)));
    } else {
      return __uint_as_float(scale << 16);
    }
  }
};

}  // namespace lapidary::cuda
